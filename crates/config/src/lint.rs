//! The names of lints, by which a file allows them.

use super::words::words;

words! {
    /// A valid setting that may not be what its author wants.
    pub enum Lint {
        /// Everybody on this machine can read a secret, a private key or the database.
        ReadableFile = "readable-file",
        /// The store is reached without TLS, or is not verified.
        StoreTransport = "store-transport",
        /// Nothing proves that an entry of the shared cache is Oncegate's own.
        CacheUnsigned = "cache-unsigned",
        /// A password crosses the network in cleartext.
        CleartextPassword = "cleartext-password",
        /// Nothing proves to a receiver that an event is Oncegate's own.
        EventsUnsigned = "events-unsigned",
        /// The keys are lost with the process.
        MemoryStore = "memory-store",
        /// Anybody may be a trusted proxy.
        AnyProxy = "any-proxy",
        /// No scope reads the tokens that could be verified.
        JwtUnused = "jwt-unused",
        /// The keys of the tokens' issuer are read without TLS.
        JwtCleartext = "jwt-cleartext",
        /// The key that verifies tokens makes tokens too.
        JwtSharedSecret = "jwt-shared-secret",
        /// No certificate can be verified.
        NoAuthorities = "no-authorities",
        /// A body that the route allows never finds room.
        BodyWithoutRoom = "body-without-room",
        /// Any caller who knows a key gets its response.
        ScopeNone = "scope-none",
        /// The service is asked for a key that two callers may share.
        ReconcileByKey = "reconcile-by-key",
        /// Another route's spelling refuses a path of the route.
        AmbiguousPath = "ambiguous-path",
        /// Requests of the route's host go to several services.
        SplitHost = "split-host",
        /// Money is executed again after an answer that says that it was done.
        Money2xx = "money-2xx",
        /// Money is executed again after a failure that may come after the charge.
        Money5xx = "money-5xx",
        /// Money without a key is unguarded.
        MoneyKeyless = "money-keyless",
        /// Money is unguarded while the store is away.
        MoneyBypass = "money-bypass",
        /// Money of an unknown outcome is executed again.
        MoneyRetry = "money-retry",
        /// Money with another body counts as the same request.
        MoneyBody = "money-body",
        /// A key is forgotten before a client's retry.
        ShortTtl = "short-ttl",
        /// A restart ends attempts within their time limit.
        ShortDrain = "short-drain",
        /// A connection may be closed by the service under a request.
        LongIdle = "long-idle",
    }
}
