"""Every environment variable of this program's own.

A person may set the first three; this program sets the others.
"""

CACHE = "TRAINBOOK_CACHE"  # the folder for caches, instead of the platform's
KAGGLE_ROOT = (
    "TRAINBOOK_KAGGLE_ROOT"  # the folder in place of /kaggle; tests imitate a session in it
)
SESSION_START = "TRAINBOOK_SESSION_START"  # Unix time from which a session's minutes count, instead of the process's

RANK_FOLDER = (
    "TRAINBOOK_RANK_FOLDER"  # the folder in which a rank leaves its last words for the launcher
)
RELAY = "TRAINBOOK_RELAY"  # set for ranks whose progress is shown by the process that started them
DEADLINE = "TRAINBOOK_DEADLINE"  # Unix time at which a foreign command will be asked to end
