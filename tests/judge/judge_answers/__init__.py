"""Known pairs and runs, whose answers the judge must give before it gives any other."""
