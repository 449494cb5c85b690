"""From artifacts to a report: gather numbers, compare them, draw them, write them down."""
