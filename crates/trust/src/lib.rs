//! Certificates, tokens and signatures: who a client is, and whom Oncegate trusts.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod jwt;
pub mod tls;
pub mod webhook;
