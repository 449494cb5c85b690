"""What the commands do. `flows/cli.py` declares them; nothing here is imported before a command needs it."""
