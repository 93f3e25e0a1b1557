"""What compiles, finds and checks the compiled modules. Needs only the standard library."""
