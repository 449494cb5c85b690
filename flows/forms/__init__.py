"""What each flow is asked: as typed requests for the command line, and as the forms that a person fills in the Prefect UI."""
