"""What users write: declared parameters, snippets and their derivatives, constants."""
