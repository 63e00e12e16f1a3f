//! One SMTP attempt: connect, authenticate, send, and say what the answer means.
