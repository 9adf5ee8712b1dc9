"""From scenes in any layout to tiles dealt to parts."""
