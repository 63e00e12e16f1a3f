//! The faces of the binary `tollgate`: every test starts the real thing and talks to it over HTTP,
//! raw TCP or the command line. Nothing is mocked, and no test shares a server with another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod alerts;
mod bad_input;
mod bad_policies;
mod cli_checks;
mod cli_failures;
mod cli_policies;
mod cli_slot_import;
mod cli_slots;
mod connections;
mod decisions;
mod file_modes;
mod first_run;
mod gate;
mod gate_caddy;
mod gate_jwt;
mod gate_nginx;
mod headers;
mod idempotency;
mod mail_access;
mod mail_bad_input;
mod mail_catalogue;
mod mail_cli;
mod mail_crash;
mod mail_delivery;
mod mail_openapi;
mod mail_postgres;
mod mail_queue;
mod mail_send;
mod offenders;
mod openapi;
mod other_sites;
mod others_in_the_way;
mod policies;
mod postgres;
mod rate_limit_config;
mod refunds;
mod restarts;
mod shutdown;
mod slot_listing;
mod slots;
mod slots_bad_input;
mod slots_batch;
mod slots_several;
mod starts;
mod store_down;
mod subjects;
mod support;
mod system;
mod tiers;
mod tls;
mod tokens;
mod waits;
