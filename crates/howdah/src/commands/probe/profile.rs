//! `howdah probe profile`: profiles the stacks of the server's processes, as a flame graph.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use howdah_probe::{
    live::{Pace, ServerLiveness, profile_stacks},
    stacks::profile::{ProfileMode, ProfileScope, StackProfile, StackProfiler},
};
use howdah_report::probe::{flame_graph, write_folded, write_profile};

use super::{
    common::{self, RowFormatArg},
    target::TargetArgs,
};
use crate::{
    commands::replay::allow_many_connections, context::CommandContext, errors::WithHint as _,
    outcome::CommandOutcome, values::time,
};

/// Profile the functions in which the server's processes run or sleep, and draw a flame graph.
///
/// Samples the stacks of all processes while they use CPU time, by events of the kernel, which need
/// root or CAP_PERFMON. With `--off-cpu`, measures where sessions leave the CPU and for how long:
/// for locks, I/O, WAL, other processes. Stacks are complete if the server is built with frame
/// pointers, as those of Debian and PGDG are.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Profile the time off the CPU instead of CPU time
    #[arg(long)]
    off_cpu: bool,
    /// Samples per second of CPU time
    #[arg(long, value_name = "HZ", default_value_t = 99, conflicts_with = "off_cpu", value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Only this process
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Off the CPU, include the server's own processes and waits for clients
    #[arg(long, requires = "off_cpu")]
    all: bool,
    /// Exit after this time [default: run until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Write the flame graph to this SVG file
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the stacks to this file, one a line, as flame graph tools read them
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
    /// Output format; the kinds of rows are described in the reference
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: RowFormatArg,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe profile postgresql://localhost/shop --duration 10s --output cpu.svg
  howdah probe profile --data-dir /var/lib/postgresql/17/main --off-cpu -o waits.svg
  howdah probe profile --pid 4711 --process 4720 --duration 30s --folded stacks.txt";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let server = args.target.find()?.server;
    // Before the profile, which would be lost if a file could not be created.
    let files = ProfileFiles {
        svg: args.output.as_deref().map(create).transpose()?,
        folded: args.folded.as_deref().map(create).transpose()?,
    };
    // Each process needs a descriptor.
    allow_many_connections();
    let mode = if args.off_cpu {
        ProfileMode::OffCpu
    } else {
        ProfileMode::OnCpu { frequency: args.frequency }
    };
    let scope = ProfileScope { process: args.process, has_all: args.all };
    let profiler = StackProfiler::attach(&server, mode, scope)
        .context("cannot profile the server")
        .hint("run it as root or with CAP_PERFMON and CAP_SYS_PTRACE")?;
    if let Some(pid) = args.process.filter(|_| profiler.processes() == 0) {
        anyhow::bail!("process {pid} is not one of this server");
    }
    let monitor = ServerLiveness::new(&server).map_err(|error| common::live_error(error.into()))?;
    common::report_attached(&server, ctx);
    let pace = Pace {
        interval: profiler.poll_interval(),
        duration: args.duration,
        stop: ctx.interrupted(),
    };
    let (profile, ended) = profile_stacks(profiler, monitor, &pace).map_err(common::live_error)?;
    args.write(&profile, files, ctx)?;
    report_gaps(&profile, ctx);
    common::outcome(ended.map(Into::into))
}

impl Args {
    fn write(
        &self,
        profile: &StackProfile,
        files: ProfileFiles<'_>,
        ctx: &CommandContext,
    ) -> anyhow::Result<()> {
        let seconds = profile.total().as_secs_f64();
        let (what, unit) =
            if self.off_cpu { ("Time off the CPU", "switches") } else { ("CPU time", "samples") };
        let count: u64 = profile.stacks.values().map(|weight| weight.count).sum();
        write_profile(ctx.output(), self.format.into(), profile)?;
        if let Some(file) = files.svg {
            let title = format!("{what}: {seconds:.1} s, {count} {unit}");
            let svg = flame_graph(profile, &title, unit);
            file.write(|file| file.write_all(svg.as_bytes()))?;
        }
        if let Some(file) = files.folded {
            file.write(|file| write_folded(file, profile))?;
        }
        ctx.report(format_args!("{count} {unit}, {seconds:.3} s"));
        Ok(())
    }
}

/// The files that the options ask for.
struct ProfileFiles<'p> {
    svg: Option<OpenedFile<'p>>,
    folded: Option<OpenedFile<'p>>,
}

struct OpenedFile<'p> {
    path: &'p Path,
    file: File,
}

/// Creates or replaces a file.
fn create(path: &Path) -> anyhow::Result<OpenedFile<'_>> {
    let file = howdah_files::create(path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(OpenedFile { path, file })
}

impl OpenedFile<'_> {
    fn write(
        self,
        write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut file = BufWriter::new(self.file);
        let written = write(&mut file).and_then(|()| file.flush());
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Reports what is missing in the profile.
fn report_gaps(profile: &StackProfile, ctx: &CommandContext) {
    let StackProfile { lost, incomplete, lacks_kernel, uncounted, unrecorded, .. } = profile;
    if *lacks_kernel {
        ctx.report("time in the kernel is missing: needs CAP_PERFMON (or root)");
    }
    if *incomplete > 0 {
        ctx.report(format_args!(
            "{incomplete} stacks are incomplete ([cut]): the build has no frame pointers there"
        ));
    }
    if *lost > 0 {
        ctx.report(format_args!("{lost} events lost between kernel and probe"));
    }
    if *uncounted > 0 {
        ctx.report(format_args!("{uncounted} events not counted: too many different stacks"));
    }
    if *unrecorded > 0 {
        ctx.report(format_args!(
            "{unrecorded} {} not recorded, at least not from the start: the kernel refused (see \
             `ulimit -n`), or another owner",
            if *unrecorded == 1 { "process" } else { "processes" }
        ));
    }
}
