"""What a client waited for, step by step of the GPU: its log on the capture's clock, its gaps by cause."""

from .explain import ClientOptions, explain_client
from .report import ClientReport
from .steps import CaptureClock, CaptureSteps

__all__ = ["CaptureClock", "CaptureSteps", "ClientOptions", "ClientReport", "explain_client"]
