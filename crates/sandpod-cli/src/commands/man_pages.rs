//! `sandpod man-pages`: writes the manual pages that a release contains.

use std::path::PathBuf;

use clap::Args;

use super::Context;
use crate::exit::{Failure, Result};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory of the pages
    directory: PathBuf,
}

/// Writes a page for each command.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<()> {
    context.refuse_json("it writes files")?;
    let action = format!("write {}", arguments.directory.display());
    std::fs::create_dir_all(&arguments.directory).map_err(|cause| Failure::local(&action, &cause))?;
    let command = crate::command_line().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &arguments.directory).map_err(|cause| Failure::local(&action, &cause))
}
