//! Tells tenants what became of their messages.
