"""Kaggle from the command line: data sets, notebooks, chains of sessions. Stays at home: no notebook carries it."""
