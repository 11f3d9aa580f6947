//! `oncegate conform`

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use canonical_json::Pointer;
use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use http::HeaderName;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::endpoint_arguments::{EndpointArguments, parse_pointer};
use super::{CommandError, block_on, failed};
use oncegate_config as config;
use oncegate_http::protocol::answer_shape::{AnswerShape, RequestFormat};
use oncegate_http::protocol::refusal::RetryAfter;
use oncegate_probe::conform::{ConformPlan, LinkTiming, LossyLink, OperationIdentity, ROUND};
use oncegate_settings::{self as settings, Dialect, Word};

#[derive(Args)]
pub(super) struct ConformArguments {
    /// The service's address, `http://` or `https://`, without a path
    url: String,
    /// The address that the client sends its requests to; port 0 is a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The field that has the operation's name, the same for all of its requests
    #[arg(long, value_name = "NAME")]
    operation_field: Option<HeaderName>,
    /// The place of the operation's name in the JSON body: a JSON Pointer such as /order
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer, conflicts_with = "operation_field")]
    operation_body: Option<String>,
    /// The time within which an equal request under another key counts as a retry, where nothing else tells operations
    /// apart
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = settings::parse_duration)]
    window: Duration,
    /// The runs of COMMAND, of which each is one operation; each 8 of them meet all faults
    #[arg(long, value_name = "NUMBER", default_value_t = ROUND, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    operations: usize,
    /// The longest run of COMMAND
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = settings::parse_duration)]
    run_timeout: Duration,
    /// The seed of the faults; by default another one each time, which is in the report
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// The wait of a late answer
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = settings::parse_duration)]
    delay: Duration,
    /// The value of Retry-After in the link's refusals
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = settings::parse_duration)]
    retry_after: Duration,
    /// The form of the link's refusals
    #[arg(long, value_name = "DIALECT", default_value = "ietf", value_parser = PossibleValuesParser::new(Dialect::WORDS).map(parse_dialect))]
    dialect: Dialect,
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// The client: a command that sends one operation to $CONFORM_URL, and exits with 0 if it knows that the operation
    /// is done. $CONFORM_OPERATION is the number of the run. Without a command, the link runs until Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The form of refusals in a dialect.
fn shape_of(dialect: Dialect) -> AnswerShape {
    AnswerShape::new(dialect, config::dialect_refusals(dialect), RequestFormat::Json)
}

fn parse_dialect(word: String) -> Dialect {
    Dialect::parse(&word).expect("clap has checked the word")
}

pub(super) fn run(arguments: ConformArguments) -> Result<(), CommandError> {
    let usage = |text: &str| CommandError::Usage(text.to_owned());
    let endpoint = arguments.endpoint.endpoint(&arguments.url)?;
    if !endpoint.is_whole_service() {
        return Err(usage("the URL has a path: name the service alone, the client sends the path"));
    }
    let effect = format!("this sends some requests to {} twice", endpoint.authority.host());
    arguments.endpoint.require_confirmation(&endpoint, &effect)?;
    let pointer = arguments.operation_body.as_deref().map(|text| Pointer::parse(text).expect("clap has checked it"));
    if pointer.as_ref().is_some_and(Pointer::is_pattern) {
        return Err(usage("--operation-body has a *, and no single value there is the operation's name"));
    }
    let identity = match (&arguments.operation_field, pointer, arguments.command.is_empty()) {
        (Some(name), ..) => OperationIdentity::Field(name.clone()),
        (None, Some(pointer), _) => OperationIdentity::Body(pointer),
        (None, None, false) => OperationIdentity::Run,
        (None, None, true) => OperationIdentity::Likeness(arguments.window),
    };
    let runs = if matches!(identity, OperationIdentity::Run) { arguments.operations } else { 1 };
    let retry_after = RetryAfter::new(arguments.retry_after);
    let plan = ConformPlan {
        endpoint,
        listen: arguments.listen,
        identity,
        key_place: arguments.endpoint.key_place(false),
        seed: arguments.seed.map_or_else(draw_seed, Ok)?,
        timing: LinkTiming { delay: arguments.delay, retry_after, shape: shape_of(arguments.dialect) },
    };
    let report = block_on(async {
        let link = LossyLink::start(plan).await.map_err(CommandError::Unreachable)?;
        eprintln!("oncegate: the link listens on http://{}", link.address());
        match arguments.command.split_first() {
            None => wait_for_signal().await.map_err(failed)?,
            Some((program, words)) => {
                for number in 1..=runs {
                    link.begin_run();
                    let is_success = run_client(program, words, &link, number, arguments.run_timeout).await?;
                    link.end_run(is_success);
                }
            }
        }
        Ok(link.report())
    })?;
    arguments.endpoint.publish(&report)
}

/// Draws a seed that is short enough to be typed.
fn draw_seed() -> Result<u64, CommandError> {
    oncegate_machine::random_u32().map(u64::from).map_err(|error| failed(error.to_string()))
}

async fn wait_for_signal() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
        // The terminal is gone.
        _ = hung_up.recv() => Ok(()),
    }
}

async fn run_client(
    program: &OsString,
    words: &[OsString],
    link: &LossyLink,
    number: usize,
    limit: Duration,
) -> Result<bool, CommandError> {
    let mut command = Command::new(program);
    command.args(words).env("CONFORM_URL", format!("http://{}", link.address()));
    // Standard output is the report's.
    command
        .env("CONFORM_OPERATION", number.to_string())
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .kill_on_drop(true);
    let name = program.to_string_lossy();
    let mut child = command.spawn().map_err(|error| failed(format!("{name}: {error}")))?;
    match timeout(limit, child.wait()).await {
        Ok(ended) => Ok(ended.map_err(failed)?.success()),
        Err(_) => {
            eprintln!("oncegate: run {number} of {name} was ended after {} s", limit.as_secs());
            Ok(false)
        }
    }
}
