"""The compiled modules, in a folder for each version of torch, with a build_config.json each.

setup.py makes them; torch_ops._install.diagnose chooses the folder for the torch that is installed,
checks and loads what is there, and makes it this package's path.
"""
