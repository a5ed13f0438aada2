//! One file per command: its arguments with their help, and what it does.

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

use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::target::{Options, Target};

/// What a command has beside its own arguments.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) output: Output,
}

impl Context {
    /// Where sandboxes are.
    pub(crate) fn target(&self) -> Result<Target> {
        Target::new(self.options.clone())
    }

    /// Refuses JSON for what is no value.
    pub(crate) fn refuse_json(&self, why: &str) -> Result<()> {
        if !self.output.is_json() {
            return Ok(());
        }
        Err(Failure::usage(format!("--output json has no meaning here: {why}."), "Leave it out."))
    }
}

// Deferred: to describe the arguments of all commands takes a fifth of the time of a short one.
#[derive(Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Run a command in a new sandbox, then delete the sandbox
    Run(run::Arguments),
    /// Make a sandbox that stays, and print what it is
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
    /// Look for text in a sandbox's files
    Grep(grep::Arguments),
    /// Look for files of a sandbox by pattern
    Glob(glob::Arguments),
    /// List the commands that were started in a sandbox
    Ps(ps::Arguments),
    /// Print what a started command wrote
    Logs(logs::Arguments),
    /// Take part in a started command: its output here, our input there
    Attach(attach::Arguments),
    /// Send a signal to a started command and all that it started
    Kill(kill::Arguments),
    /// List sandboxes
    List(list::Arguments),
    /// Print what is known of a sandbox
    Info(info::Arguments),
    /// Give a sandbox more time
    Extend(extend::Arguments),
    /// End a sandbox's Pod and keep its volumes, until it is resumed
    #[command(after_help = suspend::SUSPEND_EXAMPLES)]
    Suspend(suspend::SuspendArguments),
    /// Give a suspended sandbox a Pod again
    #[command(after_help = suspend::RESUME_EXAMPLES)]
    Resume(suspend::ResumeArguments),
    /// Delete sandboxes with all that they have
    Delete(delete::Arguments),
    /// Delete sandboxes whose time is up
    Gc(gc::Arguments),
    /// Look at the warm pool
    Pool(pool::Arguments),
    /// Count sandboxes, or say what one of them uses
    Stats(stats::Arguments),
    /// Show the configuration and where each value comes from
    Config(config::Arguments),
    /// Find out what keeps sandboxes from working here, and what to do about it
    Doctor(doctor::Arguments),
    /// Print what a cluster needs: namespace, rights, reaper, policies, templates
    Manifests(manifests::Arguments),
    /// Print a script that completes this command's words
    Completions(completions::Arguments),
}

impl Command {
    /// Whether it writes files here.
    pub(crate) fn copies(&self) -> bool {
        matches!(self, Self::Cp(_))
    }
}

/// Does what a command says.
pub(crate) async fn run(command: Command, context: &Context) -> Result<ExitCode> {
    match command {
        // Their exit code is that of what they run.
        Command::Run(arguments) => return run::run(arguments, context).await,
        Command::Exec(arguments) => return exec::run(arguments, context).await,
        Command::Shell(arguments) => return shell::run(arguments, context).await,
        Command::Attach(arguments) => return attach::run(arguments, context).await,
        // It is 1 when there is nothing, or something is wrong.
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
    }?;
    Ok(ExitCode::SUCCESS)
}
