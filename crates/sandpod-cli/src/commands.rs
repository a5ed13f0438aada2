//! One file per command: its arguments, its help and its implementation.

mod attach;
mod cat;
mod completions;
mod config;
mod cp;
mod create;
mod delete;
mod doctor;
mod exec;
mod extend;
mod gc;
mod glob;
mod grep;
mod info;
mod kill;
mod list;
mod logs;
mod ls;
mod man_pages;
mod manifests;
mod mv;
mod pool;
mod ps;
mod rm;
mod run;
mod shell;
mod stats;
mod suspend;
mod write;

use std::process::ExitCode;

use clap::Subcommand;

use crate::creation::Creation;
use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::target::{Options, Target};

/// The options that all commands share.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) output: Output,
}

impl Context {
    /// Resolves the options, variables and configuration file.
    pub(crate) fn target(&self) -> Result<Target> {
        self.creating_target(Creation::default())
    }

    /// Resolves them for a command that creates a sandbox with these options.
    pub(crate) fn creating_target(&self, creation: Creation) -> Result<Target> {
        let notes_ids = !self.output.is_quiet() && !self.output.is_json();
        Target::new(Options { creation, notes_ids, ..self.options.clone() })
    }

    /// Rejects `--output json` for a command whose output is no value.
    pub(crate) fn refuse_json(&self, why: &str) -> Result<()> {
        if !self.output.is_json() {
            return Ok(());
        }
        Err(Failure::usage(format!("This command has no JSON output: {why}."), "Omit --output json."))
    }
}

// Deferred, because building the arguments of all commands takes a fifth of a short command's time.
#[derive(Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Run a command in a new sandbox, then delete the sandbox
    Run(run::Arguments),
    /// Create a sandbox that is kept, and print its details
    Create(create::Arguments),
    /// Run a command in a sandbox
    Exec(exec::Arguments),
    /// Open a shell in a sandbox, or in a new one
    Shell(shell::Arguments),
    /// Copy files and directories into a sandbox, or out of it
    Cp(cp::Arguments),
    /// List a directory of a sandbox
    Ls(ls::Arguments),
    /// Print files of a sandbox
    Cat(cat::Arguments),
    /// Write stdin to a file of a sandbox
    Write(write::Arguments),
    /// Remove files of a sandbox
    Rm(rm::Arguments),
    /// Move a file or directory within a sandbox
    Mv(mv::Arguments),
    /// Search for text in the files of a sandbox
    Grep(grep::Arguments),
    /// Find files of a sandbox by pattern
    Glob(glob::Arguments),
    /// List the commands that were started in a sandbox
    Ps(ps::Arguments),
    /// Print the output of started commands
    Logs(logs::Arguments),
    /// Attach stdin and stdout to a started command
    Attach(attach::Arguments),
    /// Send a signal to a started command and its child processes
    Kill(kill::Arguments),
    /// List sandboxes
    List(list::Arguments),
    /// Print the details of a sandbox
    Info(info::Arguments),
    /// Extend the lifetime of a sandbox
    Extend(extend::Arguments),
    /// Delete the Pod of a sandbox and keep its volumes until it is resumed
    #[command(after_help = suspend::SUSPEND_EXAMPLES)]
    Suspend(suspend::SuspendArguments),
    /// Create a new Pod for a suspended sandbox
    #[command(after_help = suspend::RESUME_EXAMPLES)]
    Resume(suspend::ResumeArguments),
    /// Delete sandboxes and everything in them
    Delete(delete::Arguments),
    /// Delete expired sandboxes and orphaned objects
    Gc(gc::Arguments),
    /// Show the warm pool
    Pool(pool::Arguments),
    /// Count sandboxes, or show the resource usage of one
    Stats(stats::Arguments),
    /// Show the configuration and the source of each value
    Config(config::Arguments),
    /// Check whether sandboxes work here, and print fixes
    Doctor(doctor::Arguments),
    /// Print Kubernetes manifests: namespace, RBAC, reaper, policies, templates
    Manifests(manifests::Arguments),
    /// Print a shell completion script
    Completions(completions::Arguments),
    /// Write the manual pages of all commands into a directory
    #[command(hide = true)]
    ManPages(man_pages::Arguments),
}

impl Command {
    /// Reports whether the command writes files on this machine.
    pub(crate) fn copies(&self) -> bool {
        matches!(self, Self::Cp(_))
    }
}

/// Runs the command.
pub(crate) async fn run(command: Command, context: &Context) -> Result<ExitCode> {
    match command {
        // These return the exit code of the command in the sandbox.
        Command::Run(arguments) => return run::run(arguments, context).await,
        Command::Exec(arguments) => return exec::run(arguments, context).await,
        Command::Shell(arguments) => return shell::run(arguments, context).await,
        Command::Attach(arguments) => return attach::run(arguments, context).await,
        // These return 1 if they find nothing, or a problem.
        Command::Grep(arguments) => return grep::run(arguments, context).await,
        Command::Glob(arguments) => return glob::run(arguments, context).await,
        Command::Doctor(arguments) => return doctor::run(arguments, context).await,
        Command::Create(arguments) => create::run(arguments, context).await,
        Command::Cp(arguments) => cp::run(arguments, context).await,
        Command::Ls(arguments) => ls::run(arguments, context).await,
        Command::Cat(arguments) => cat::run(arguments, context).await,
        Command::Write(arguments) => write::run(arguments, context).await,
        Command::Rm(arguments) => rm::run(arguments, context).await,
        Command::Mv(arguments) => mv::run(arguments, context).await,
        Command::Ps(arguments) => ps::run(arguments, context).await,
        Command::Logs(arguments) => logs::run(arguments, context).await,
        Command::Kill(arguments) => kill::run(arguments, context).await,
        Command::List(arguments) => list::run(arguments, context).await,
        Command::Info(arguments) => info::run(arguments, context).await,
        Command::Extend(arguments) => extend::run(arguments, context).await,
        Command::Suspend(arguments) => suspend::suspend(arguments, context).await,
        Command::Resume(arguments) => suspend::resume(arguments, context).await,
        Command::Delete(arguments) => delete::run(arguments, context).await,
        Command::Gc(arguments) => gc::run(arguments, context).await,
        Command::Pool(arguments) => pool::run(arguments, context).await,
        Command::Stats(arguments) => stats::run(arguments, context).await,
        Command::Config(arguments) => config::run(&arguments, context),
        Command::Manifests(arguments) => manifests::run(&arguments, context),
        Command::Completions(arguments) => completions::run(&arguments, context),
        Command::ManPages(arguments) => man_pages::run(&arguments, context),
    }?;
    Ok(ExitCode::SUCCESS)
}
