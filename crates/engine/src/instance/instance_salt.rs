//! The salts of the scopes in this process, one for each service. A process that has started without its store draws
//! one of its own until it knows the store's: its requests can be told apart in memory, and nothing that was found by
//! it may get into the store.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use oncegate_domain::scope::Salt;
use parking_lot::RwLock;

/// The salts of all services.
pub struct InstanceSalts {
    provisional: Salt,
    salts: RwLock<HashMap<Arc<str>, Arc<InstanceSalt>>>,
}

impl InstanceSalts {
    /// Of a process that does not know the store's yet. `random` is 32 bytes from the operating system's generator.
    pub fn provisional(random: [u8; 32]) -> Self {
        Self { provisional: Salt::new(random), salts: RwLock::default() }
    }

    /// The salt of a service's scopes.
    pub fn of(&self, service: &Arc<str>) -> Arc<InstanceSalt> {
        let known = self.salts.read().get(service).cloned();
        known.unwrap_or_else(|| {
            let new = || Arc::new(InstanceSalt { provisional: self.provisional.clone(), stored: OnceLock::new() });
            Arc::clone(self.salts.write().entry(Arc::clone(service)).or_insert_with(new))
        })
    }
}

/// The salt of a service's scopes.
pub struct InstanceSalt {
    provisional: Salt,
    stored: OnceLock<Salt>,
}

/// The salt at one moment.
#[derive(Clone, Copy)]
pub struct CurrentSalt<'a> {
    /// The salt.
    pub salt: &'a Salt,
    /// Whether it is not the store's.
    pub is_provisional: bool,
}

impl InstanceSalt {
    /// Uses the store's salt from now on, for the life of the process.
    pub fn set_stored(&self, salt: Salt) {
        // The first one counts: a process uses one for its life.
        let _ = self.stored.set(salt);
    }

    /// The store's salt; `None` until this process knows it.
    pub fn stored(&self) -> Option<&Salt> {
        self.stored.get()
    }

    /// The salt to use now. All that depends on it comes from one call: the next may return another.
    pub fn current(&self) -> CurrentSalt<'_> {
        match self.stored.get() {
            Some(salt) => CurrentSalt { salt, is_provisional: false },
            None => CurrentSalt { salt: &self.provisional, is_provisional: true },
        }
    }
}
