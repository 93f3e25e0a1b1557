"""The compiled modules, one for each folder of src/ that binds an op, and build_config.json.

setup.py puts both here; torch_ops._diagnose checks and loads them.
"""
