"""Files that go into exported task folders as they are; they import nothing of this project."""
