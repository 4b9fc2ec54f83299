"""The comparison of two traces: verdict, first divergences, their stages and their causes."""
