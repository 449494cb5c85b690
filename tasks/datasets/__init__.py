"""Question-answer data in the formats they are published in: one reader a format, one record a question."""
