//! Certificates and tokens: who a client is, and whom Oncegate trusts.

pub mod jwt;
pub mod tls;
