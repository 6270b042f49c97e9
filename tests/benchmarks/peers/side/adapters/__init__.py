"""One file for each system. They run in that system's virtual environment and import nothing of ours but `base`."""
