//! Opening the store.

use std::sync::Arc;

use super::{
    Backend, Distribution, Migration, OpenError, RouteIdentities, Store, StoreLocation, StoreSettings, postgres, sqlite,
};

/// Opens the store, and migrates its schema where the settings say so. After an error nothing is left open.
pub async fn open(settings: &StoreSettings) -> Result<Arc<Store>, OpenError> {
    let (store, preparation) = open_unprepared(settings).await?;
    preparation.run().await?;
    Ok(store)
}

/// The part of opening a store that needs its server.
pub struct StorePreparation {
    settings: StoreSettings,
    /// `None` where there is no server.
    server: Option<postgres::PgServer>,
}

impl StorePreparation {
    /// Checks the server, and migrates the schema where the settings say so. After [`OpenError::Away`] it can be called
    /// again.
    pub async fn run(&self) -> Result<(), OpenError> {
        match &self.server {
            Some(server) => postgres::prepare(server, &self.settings).await,
            None => Ok(()),
        }
    }
}

/// Opens the store, and connects to no server yet. Before its preparation only [`Store::ping`] may be called. After an
/// error nothing is left open.
pub async fn open_unprepared(settings: &StoreSettings) -> Result<(Arc<Store>, StorePreparation), OpenError> {
    let (backend, server) = match &settings.location {
        StoreLocation::Memory => (Backend::Sqlite(Arc::new(sqlite::open(None, settings).await?)), None),
        StoreLocation::Postgres(url) => {
            let store = postgres::open_unprepared(url, settings).await?;
            let server = store.server.clone();
            (Backend::Postgres(Arc::new(store)), Some(server))
        }
        StoreLocation::Sqlite(path) => (Backend::Sqlite(Arc::new(sqlite::open(Some(path), settings).await?)), None),
    };
    let store = Store::new(backend, settings.encryption.clone());
    Ok((store, StorePreparation { settings: settings.clone(), server }))
}

/// Migrates the schema, whatever [`StoreSettings::migrate`] says. Returns the names of what was applied:
/// migrations, `functions` and `distribution`. The migrations before one that fails have been applied.
pub async fn migrate(settings: &StoreSettings) -> Result<Vec<String>, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok(Vec::new()),
        StoreLocation::Postgres(url) => {
            postgres::migrate(&mut postgres::connect_to(url, settings).await?, settings).await
        }
        StoreLocation::Sqlite(path) => sqlite::migrate(path).await,
    }
}

/// Returns what the schema lacks, in its order: migrations, the functions, the distribution of the keys. Changes
/// nothing, and creates no file.
pub async fn pending(settings: &StoreSettings) -> Result<Vec<Migration>, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok(Vec::new()),
        StoreLocation::Postgres(url) => postgres::pending(&postgres::connect_to(url, settings).await?, settings).await,
        StoreLocation::Sqlite(path) => sqlite::look(path, sqlite::pending).await,
    }
}

/// Returns how the routes of each service find their keys, as an instance has stored it last. Changes nothing, and
/// creates no file.
pub async fn remembered_route_identities(settings: &StoreSettings) -> Result<Vec<RouteIdentities>, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok(Vec::new()),
        StoreLocation::Postgres(url) => {
            postgres::remembered_route_identities(&postgres::connect_to(url, settings).await?).await
        }
        StoreLocation::Sqlite(path) => sqlite::remembered_route_identities(path).await,
    }
}

/// Returns what a start on this store warns of, in sentences. Changes nothing, and creates no file.
pub async fn warnings(settings: &StoreSettings) -> Result<Vec<String>, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok(Vec::new()),
        StoreLocation::Postgres(url) => postgres::warnings(&postgres::connect_to(url, settings).await?).await,
        StoreLocation::Sqlite(path) => sqlite::look(path, sqlite::warnings).await,
    }
}

/// Finds out whether the keys are distributed over the nodes of a cluster. Changes nothing.
pub async fn distribution(settings: &StoreSettings) -> Result<Distribution, OpenError> {
    match &settings.location {
        StoreLocation::Memory | StoreLocation::Sqlite(_) => Ok(Distribution::None),
        StoreLocation::Postgres(url) => postgres::distribution(&postgres::connect_to(url, settings).await?).await,
    }
}
