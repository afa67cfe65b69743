"""How processes are started and kept alive."""
