//! `oncegate man`

use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::{Cli, CommandError, failed, print};

pub(super) fn run() -> Result<(), CommandError> {
    let page = render_page().map_err(failed)?;
    print(&String::from_utf8_lossy(&page))
}

/// Renders one page for all commands: an operator looks for a flag, not for the name of its page.
fn render_page() -> io::Result<Vec<u8>> {
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
        page.extend(render_command(command, command.get_name())?);
        for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
            page.extend(render_command(subcommand, &format!("{} {}", command.get_name(), subcommand.get_name()))?);
        }
    }
    whole.render_extra_section(&mut page)?;
    whole.render_version_section(&mut page)?;
    Ok(page)
}

/// Renders a command's part of the page: the sections of its own page become paragraphs under its name.
fn render_command(command: &Command, name: &str) -> io::Result<Vec<u8>> {
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
