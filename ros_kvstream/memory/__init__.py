"""What is kept, in how many bytes: torch only, no model family, no ROS."""
