"""Every environment variable of this program's own.

A person may set the first three; this program sets the others.
"""

CACHE = "TRAINBOOK_CACHE"  # the folder for caches, instead of the platform's
# The folder in place of /kaggle; tests imitate a session in it
KAGGLE_ROOT = "TRAINBOOK_KAGGLE_ROOT"
SESSION_START = "TRAINBOOK_SESSION_START"  # Unix time from which a session's minutes count, instead of the process's

# The folder in which a rank leaves its last words for the launcher
RANK_FOLDER = "TRAINBOOK_RANK_FOLDER"
RELAY = "TRAINBOOK_RELAY"  # set for ranks whose progress is shown by the process that started them
DEADLINE = "TRAINBOOK_DEADLINE"  # Unix time at which a foreign command will be asked to end
CARD = "TRAINBOOK_CARD"  # the number of the card that a foreign command was given
