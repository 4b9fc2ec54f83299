"""Run generated problems on both engines and judge the outcome."""
