"""The small base configs/chat-base: trainbook train configs/chat_base.yaml."""
