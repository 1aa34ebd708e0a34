"""Files: models in safetensors files, and writing that appears whole or not at all."""

from distgp.files.writing import PRIVATE, check_writable, whole

__all__ = ["PRIVATE", "check_writable", "whole"]
