//! Reads and checks `[admin]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::environment::Environment;
use super::reader::{Located, Section};
use super::value_parsers::socket_address;
use super::{AdminConfig, AdminToken, StoreLocation, admin_token};

/// Reads the whole table. `store` is where the store is, if that is known.
pub(super) fn read(
    section: &Section<'_>,
    listen: &Option<Located<SocketAddr>>,
    store: Option<&StoreLocation>,
    environment: &dyn Environment,
) -> Option<AdminConfig> {
    let found = read_address(section)?;
    if let Some(listen) = listen
        && listen.value == found.value
        && listen.value.port() != 0
    {
        section
            .reader()
            .problem((&listen.position).max(&found.position), "`listen` and `admin.listen` are the same address");
    }
    let (token, read_token) = (read_token(section, "token"), read_token(section, "read_token"));
    let (file, open) = (read_file(section, store, environment), section.boolean("open"));
    let (token, read_token, token_file, open) = (token?, read_token?, file?, open?);
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
    let (token, file, open) =
        (read_token(section, "token")?, read_file(section, store, environment)?, section.boolean("open")?);
    let from_file = || AdminToken::parse(environment.read(file.as_deref()?).ok()?.trim_end()).ok();
    Some(token.or_else(|| if open.value { None } else { from_file() }))
}

/// Reads a token; `Some(None)` where there is none: an unset variable leaves an empty text. Problems never show it.
fn read_token(section: &Section<'_>, name: &str) -> Option<Option<AdminToken>> {
    let text = section.text(name)?;
    if text.value.is_empty() {
        return Some(None);
    }
    match AdminToken::parse(&text.value) {
        Ok(token) => Some(Some(token)),
        Err(problem) => {
            section.reader().problem(&text.position, problem);
            None
        }
    }
}

fn read_file(
    section: &Section<'_>,
    store: Option<&StoreLocation>,
    environment: &dyn Environment,
) -> Option<Option<PathBuf>> {
    let written = section.text("token_file")?.value;
    Some(match written.is_empty() {
        true => store.and_then(|store| admin_token::default_file(store, environment)),
        false => Some(PathBuf::from(&*written)),
    })
}
