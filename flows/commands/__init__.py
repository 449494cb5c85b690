"""What the commands do. `flows/cli/` declares them; nothing here is imported before a command needs it."""
