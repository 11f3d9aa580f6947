//! Reads and checks `[admin]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::environment::Environment;
use super::options::options;
use super::reader::{Located, Section};
use super::value_parsers::socket_address;
use super::{AdminConfig, AdminToken, StoreLocation, admin_token};

options! {
    /// The options of `[admin]`.
    pub(super) struct AdminOptions {
        /// address and port for operators and probes
        listen: Text = "127.0.0.1:8081" => SocketAddr, parsed(socket_address);
        /// the token that operators present; needed unless the listener is loopback
        token: Text = "" => Option<AdminToken>, optional_concealed(AdminToken::parse);
        /// a token that may look and not change
        read_token: Text = "" => Option<AdminToken>, optional_concealed(AdminToken::parse);
        /// the file for a token that the first start draws, if there is no `token`
        token_file: Text = "" => String, string();
        /// ask for no token: everybody on this machine is an operator
        open: Boolean = false => bool, boolean();
    }
}

/// Reads the whole table. `store` is where the store is, if that is known.
pub(super) fn read(
    section: &Section<'_>,
    listen: &Option<Located<SocketAddr>>,
    store: Option<&StoreLocation>,
    environment: &dyn Environment,
) -> Option<AdminConfig> {
    let AdminOptions { listen: found, token, read_token, token_file, open } = AdminOptions::read(section);
    let found = found?;
    if let Some(listen) = listen
        && listen.value == found.value
        && listen.value.port() != 0
    {
        section
            .reader()
            .problem((&listen.position).max(&found.position), "`listen` and `admin.listen` are the same address");
    }
    let (token, read_token, token_file, open) = (token?.value, read_token?.value, token_file?.value, open?);
    let token_file = find_file(&token_file, store, environment);
    if token.is_none() && !found.value.ip().is_loopback() {
        let message = format!(
            "`{}` is no loopback address, and there is no `admin.token`: anybody who reaches this listener could do \
             everything; set ONCEGATE_ADMIN_TOKEN or `admin.token` to what `openssl rand -base64 32` prints, or write \
             `127.0.0.1:8081`",
            found.value
        );
        section.reader().problem(&found.position, message);
        return None;
    }
    if token.is_some() && token == read_token {
        section
            .reader()
            .problem(&found.position, "`token` and `read_token` are the same: a reader could change everything");
        return None;
    }
    if open.value && token.is_some() {
        section.reader().problem(&open.position, "contradicts `token`: an open listener asks for none");
        return None;
    }
    Some(AdminConfig { listen: found.value, token, read_token, token_file, open: open.value })
}

/// Reads the address alone.
pub(super) fn read_address(section: &Section<'_>) -> Option<Located<SocketAddr>> {
    section.parsed("listen", socket_address)
}

/// The token that a client of the instance sends: the configured one, else that of the file, if there is one.
pub(super) fn read_client_token(
    section: &Section<'_>,
    store: Option<&StoreLocation>,
    environment: &dyn Environment,
) -> Option<Option<AdminToken>> {
    let token = section.optional_concealed("token", AdminToken::parse)?;
    let (file, open) = (section.string("token_file")?.value, section.boolean("open")?);
    let file = find_file(&file, store, environment);
    let from_file = || AdminToken::parse(environment.read(file.as_deref()?).ok()?.trim_end()).ok();
    Some(token.value.or_else(|| if open.value { None } else { from_file() }))
}

/// The file of the token that the first start draws: the written one, or the default.
fn find_file(written: &str, store: Option<&StoreLocation>, environment: &dyn Environment) -> Option<PathBuf> {
    match written {
        "" => store.and_then(|store| admin_token::default_file(store, environment)),
        written => Some(written.into()),
    }
}
