"""Makes the small base configs/chat-base: python -m workloads.chat.base.make FOLDER."""
