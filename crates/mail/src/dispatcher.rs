//! Sends what is due: work-conserving, paced, fair.
