//! The relay's tables, as they came to be. Brought up to date like the store's own.

use tollgate::{PostgresMigration as Migration, PostgresMigrations as Migrations};

pub(super) const MIGRATIONS: Migrations = Migrations {
    what: "mail in the schema",
    lock: "tollgate mail migrate",
    table: "mail_migration",
    steps: &[
        Migration::new(1, "initial", include_str!("../../../migrations/postgres/V1__initial.sql")),
        Migration::new(2, "removed", include_str!("../../../migrations/postgres/V2__removed.sql")),
    ],
};
