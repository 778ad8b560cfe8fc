"""The ROS node: lifecycle, images, parameters, worker thread, diagnostics, messages. No model code in here."""
