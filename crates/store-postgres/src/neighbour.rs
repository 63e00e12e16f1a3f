//! For whoever keeps tables of its own beside the store's: connections by the same URL, so that
//! TLS, passwords and the schema are set in one place.

use std::time::Duration;

use tokio_postgres::Client;
use tollgate_core::store::{StoreError, StoreErrorKind};

use crate::connect::Connector;
use crate::error::failed;
use crate::migrate::Migrations;
use crate::settings::{BadUrl, Settings};

/// Makes connections to the database of a store's URL. Cheap to clone.
#[derive(Clone)]
pub struct Neighbour {
    connector: Connector,
    schema: String,
}

impl std::fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbour").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Neighbour {
    /// Reads a `postgres://` URL. Connects to nothing yet.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let settings = Settings::parse(url)
            .map_err(|BadUrl(why)| StoreError::new(StoreErrorKind::Unavailable, why))?;
        let connector = Connector::new(&settings)?;
        Ok(Self { connector, schema: settings.schema })
    }

    /// Where the tables belong; needs no thought about quoting.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// A connection, driven by a task of the present runtime until it is dropped.
    pub async fn connect(&self, within: Duration) -> Result<Client, StoreError> {
        self.connector.connect(within).await
    }

    /// Brings tables of its own up to date.
    pub async fn migrate(
        &self,
        client: &Client,
        migrations: &Migrations,
    ) -> Result<(), StoreError> {
        migrations.run(client, &self.schema).await
    }

    /// What PostgreSQL's error means to a caller. It never holds a password.
    pub fn error(what: &str, error: tokio_postgres::Error) -> StoreError {
        failed(what, error)
    }
}
