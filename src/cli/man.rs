//! `oncegate man`

use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::{Cli, Ended, print};

pub(super) fn run() -> Result<(), Ended> {
    let page = page().map_err(|error| Ended::Other(error.into()))?;
    print(&String::from_utf8_lossy(&page))
}

/// One page for all commands: an operator looks for a flag, not for the name of the page that it is on.
fn page() -> io::Result<Vec<u8>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let whole = Man::new(command.clone()).manual("Oncegate");
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    whole.render_description_section(&mut page)?;
    page.extend(b".SH COMMANDS\n");
    for command in command.get_subcommands() {
        page.extend(chapter(command, command.get_name())?);
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            page.extend(chapter(verb, &format!("{} {}", command.get_name(), verb.get_name()))?);
        }
    }
    whole.render_extra_section(&mut page)?;
    whole.render_version_section(&mut page)?;
    Ok(page)
}

/// A command's own page as a part of the whole: its sections become paragraphs under its name.
fn chapter(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut chapter = Vec::new();
    man.render_description_section(&mut chapter)?;
    man.render_synopsis_section(&mut chapter)?;
    man.render_options_section(&mut chapter)?;
    let chapter = String::from_utf8_lossy(&chapter)
        .replace(".SH DESCRIPTION\n", &format!(".SS {name}\n"))
        .replace(".SH SYNOPSIS\n", ".PP\n")
        .replace(".SH OPTIONS\n", "");
    Ok(chapter.into_bytes())
}
