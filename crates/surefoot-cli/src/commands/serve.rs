//! `surefoot serve`: a model over HTTP, as OpenAI's clients expect it.

mod access;
mod adapters;
mod announcement;
mod lifetime;
mod limits;
mod listener;
mod several;
mod traces;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use surefoot::journal::Journal;
use surefoot_models::ModelError;
use surefoot_models::Opened;
use surefoot_models::embed::{Pooling, Recipe};
use surefoot_models::generate::speculate::{SpeculationCounts, SpeculationMode};
use surefoot_models::generate::text::Texts;
use surefoot_serve::chat::{ChatError, Template};
use surefoot_serve::engine::{self, Engine, EngineError, EngineSettings};
use surefoot_serve::http::{App, ConnectionLimits, Keys, Origins, ProcessGateway, ServerSettings};
use surefoot_serve::metrics::Metrics;
use surefoot_verify::identity::Identity;

use adapters::NamedAdapter;
use limits::Limits;
use listener::{Listening, PrivateSocket};

use crate::args::Global;
use crate::child::{is_isolated, supervise_by, supervisor};
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_folder::{self, ModelFolder};
use crate::model_run;
use crate::speculation_args::{self, SpeculationArgs};
use crate::terminal::Terminal;
use crate::trouble;
use crate::watch;
use crate::weights_args::WeightsArgs;

/// What a server that drains takes beyond the longest request, at most.
const LONGEST_END: Duration = Duration::from_secs(15);

/// Serve a model over HTTP: OpenAI's embeddings, completions and chats
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the address on stdout once requests are accepted. Paths: /v1/embeddings, /v1/completions,
/v1/chat/completions (with \"stream\": true as server-sent events), /v1/responses, /v1/rerank,
/v1/models, /tokenize, /detokenize, /health, /live, /ready, /metrics.
Structured output: response_format (json_object, json_schema), guided_json, guided_regex,
guided_choice or guided_grammar (GBNF). Function calls: tools and tool_choice.
Requests are run in batches, and new ones join a running batch between two tokens. After Ctrl-C or
SIGTERM the server finishes the accepted requests and exits; a second Ctrl-C exits at once.

Chats are converted to prompts by the model's own template (chat_template.jinja or
tokenizer_config.json). A model without one accepts no chats unless --chat-template names one.

Only this machine can connect, unless --host says otherwise. Then an API key is required: in a
file, or in the environment variable SUREFOOT_API_KEY.

Examples:
  surefoot serve models/llama
  surefoot serve models/llama --port 0 --memory 4GiB --context 4096
  surefoot serve models/llama --adapter chats=runs/chats/adapter --adapter legal=runs/legal/adapter
  surefoot serve models/llama --watch         show it live in a browser
  surefoot serve models/llama --speculate auto
  surefoot serve models/llama-8b --draft models/llama-1b
  surefoot serve models/minilm --host 0.0.0.0 --api-key-file keys.txt
  surefoot serve chat=models/llama embed=models/minilm --memory 8GiB
  surefoot serve models/llama --otlp http://127.0.0.1:4318
  OTEL_EXPORTER_OTLP_CERTIFICATE=ca.pem surefoot serve models/llama --otlp https://collector:4318

  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"llama\", \"prompt\": \"Once upon a time\", \"max_tokens\": 32}'
  curl -N http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"llama\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"stream\": true}'
  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"llama\", \"prompt\": \"A date: \", \"guided_regex\": \"[0-9]{4}-[0-9]{2}-[0-9]{2}\"}'

  from openai import OpenAI
  client = OpenAI(base_url=\"http://127.0.0.1:8080/v1\", api_key=\"none\")
  client.embeddings.create(model=\"minilm\", input=[\"one\", \"two\"])")]
pub(crate) struct Serve {
    /// The model folder (config.json, tokenizer.json and safetensors weights), a GGUF file, or a checkpoint of a
    /// text model that `surefoot train` wrote. Several models are given as NAME=DIR each, with --memory
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Further models, as NAME=DIR: each is loaded when a request names it, and the least recently used
    /// one is unloaded to make room
    #[arg(value_name = "NAME=DIR")]
    others: Vec<String>,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// The name of the model in requests; by default the name of the folder
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A file with API keys, one per line; a client has to send one of them
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Accept requests of other machines without an API key
    #[arg(long)]
    allow_anyone: bool,
    /// Refuse to start unless the model's files have this digest, which `surefoot fingerprint`
    /// prints, so that a load balancer gets no replica with other weights. With several models:
    /// MODEL=DIGEST, for each that is to be checked
    #[arg(long, value_name = "[MODEL=]DIGEST")]
    expect_digest: Vec<String>,
    /// The template of chats: a file, chatml, or plain (the role before each message)
    #[arg(long, value_name = "WHAT")]
    chat_template: Option<String>,
    /// Let web pages of this origin send requests: `https://example.org`, or `*` for all; can be given
    /// several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// How the tokens of a text become one vector
    #[arg(long, value_enum, value_name = "HOW")]
    pooling: Option<PoolingArg>,
    /// Show the server live on a web page of this machine, on this port or without a value on any free
    /// one
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    watch: Option<u16>,
    /// Send traces of requests to this OpenTelemetry collector, with OTLP over HTTP: `http://HOST:4318` or `https://…`
    ///
    /// Without this option OTEL_EXPORTER_OTLP_ENDPOINT is used, if it is set. OTEL_SERVICE_NAME names the service, and
    /// OTEL_EXPORTER_OTLP_HEADERS holds headers such as keys. Over https the collector's certificate is checked against Mozilla's
    /// authorities, or those in the PEM file that OTEL_EXPORTER_OTLP_CERTIFICATE names;
    /// OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY name the certificate and the key of this server,
    /// if the collector asks for one
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Don't compile a GPU's kernels before listening: the first requests of each size wait for them
    #[arg(long)]
    no_warm_up: bool,
    /// Also serve the model with this adapter, a folder in PEFT's format, under a name of its own (by default the name of
    /// the folder); can be given several times. With several models: MODEL:NAME=DIR, which clients request as MODEL:NAME
    #[arg(long, value_name = "[NAME=]DIR")]
    adapter: Vec<NamedAdapter>,
    #[command(flatten)]
    weights: WeightsArgs,
    // What has a heading of its own comes last: what follows it would be under it.
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingArg {
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Model(error) => match Arc::try_unwrap(error) {
                Ok(error) => error.into(),
                Err(error) => Self::usage(error.to_string()),
            },
            EngineError::Fault(fault) => fault.as_ref().clone().into(),
            other => Self::usage(other.to_string()),
        }
    }
}

/// Why an engine did not start, with what would make the model fit if it does not.
fn not_started(error: EngineError, saves_memory: Option<&str>) -> Failure {
    let lacks_memory = match &error {
        EngineError::Model(error) => matches!(**error, ModelError::Memory { .. }),
        _ => false,
    };
    let failure = Failure::from(error);
    saves_memory.filter(|_| lacks_memory).into_iter().fold(failure, Failure::hint)
}

/// Compiles ahead what requests will need, with a bar if that takes a while.
fn warm_up(engine: &Engine, global: &Global) -> Result<(), Failure> {
    let target =
        if global.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(None, target);
    let style = ProgressStyle::with_template("  {bar:24} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    engine.warm_up(|done, all| {
        bar.set_length(all as u64);
        bar.set_message(format!("compiling for the sizes of requests: {done} of {all}"));
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    Ok(())
}

impl Serve {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let keys = self.keys()?;
        let speculation = self.speculation.mode()?;
        let address = self.address(&keys)?;
        let origins = Origins::new(&self.cors)
            .map_err(|error| Failure::usage("--cors can't be used").caused_by(&error))?;
        let endpoint = traces::endpoint(self.otlp.as_deref(), terminal)?;
        if self.footing.isolate {
            return self.supervise(address, (keys, origins), global, terminal);
        }
        model_run::with_one_arena()?;
        if let Some(models) = several::named(&self.model, &self.others)? {
            if self.speculation.has_draft() {
                return Err(Failure::usage(
                    "--draft names one model, which can't draft for several",
                )
                .hint("--speculate auto, which needs no draft model")
                .hint("one server for each model that has a draft model"));
            }
            return self.serve_several(&models, address, (keys, origins), global, terminal);
        }
        let folder = ModelFolder::of(&self.model)?;
        let adapters = NamedAdapter::checked(&self.adapter, &self.name()?, &folder)?;
        let draft = self.speculation.draft()?;
        // Taken before the model is loaded: a port that is in use is found out at once.
        let Listening { socket, address, is_behind_gateway } = listener::listen(address)?;
        let live = watch::start(self.watch, format!("Serving {}", self.name()?), terminal)?;
        let mut journal = global.journal_builder()?.listener(trouble::tell(global.quiet));
        if let Some(live) = &live {
            journal = journal.listener(live.listener());
        }
        let journal = journal.build();
        let metrics = Arc::new(Metrics::default());
        let exporter = traces::start(endpoint, &metrics)?;
        let tracer = exporter.as_ref().map(|exporter| Arc::clone(exporter.tracer()));
        let mut quiet = engine::without_single_passes(journal.clone(), Arc::clone(&metrics));
        if let Some(tracer) = &tracer {
            quiet = tracer.listening(quiet);
        }
        let precision = model_run::precision(self.footing.precision);
        let footing = Arc::new(self.footing.model_footing(quiet)?.precision(precision).build()?);
        let opened = Opened::new(folder.path())?;
        let texts = match Texts::exist(folder.path()) {
            true => Some(Texts::open(folder.path(), opened.blueprint.vocab)?),
            false => None,
        };
        match self.expect_digest.as_slice() {
            [] => {}
            [expected] => check_digest(&opened, &self.name()?, expected)?,
            _ => return Err(Failure::usage("one model has one --expect-digest")),
        }
        let recipe = Recipe::read(folder.path())?;
        let saves_memory = limits::saves_memory(&opened, recipe.max_tokens);
        drop(opened);
        let template = self.template(folder.path())?;
        if let Err(error) = &template {
            terminal.note(&format!(
                "chats are refused: {error}; --chat-template FILE, chatml or plain allows them"
            ));
        }
        let in_flight = if footing.device()?.is_asynchronous() { 2 } else { 1 };
        if speculation != SpeculationMode::Off && footing.device()?.is_asynchronous() {
            let device = footing.device()?.name();
            terminal.note(&format!(
                "no tokens are proposed on {device}: there they could change answers"
            ));
        }
        let settings = EngineSettings {
            limits: self.limits.engine_limits(recipe.max_tokens, in_flight),
            pooling: match self.pooling {
                Some(PoolingArg::Mean) => Pooling::Mean,
                Some(PoolingArg::Cls) => Pooling::Cls,
                None => recipe.pooling,
            },
            journal: journal.clone(),
            weights: self.weights.weights,
            adapter: folder.adapter().map(Path::to_owned),
            adapters: adapters.iter().map(|adapter| adapter.folder.clone()).collect(),
            speculation,
            draft: draft.as_ref().map(|folder| folder.path().to_owned()),
        };
        let engine = Engine::start(folder.path(), footing, settings, Arc::clone(&metrics))
            .map_err(|error| not_started(error, saves_memory))?;
        if let Some(unused) = engine.unused_draft() {
            terminal.note(&unused.to_string());
        }
        if !self.no_warm_up {
            warm_up(&engine, global)?;
        }
        let settings = ServerSettings {
            name: self.name()?,
            adapters: adapters.into_iter().map(|adapter| adapter.name).collect(),
            keys,
            max_body: usize::try_from(self.limits.max_body.0).unwrap_or(usize::MAX),
            max_tokens: self.limits.max_tokens as usize,
            timeout: Duration::from_secs(u64::from(self.limits.timeout)),
            // A gateway answers browsers.
            origins: if is_behind_gateway { Origins::default() } else { origins },
            connections: ConnectionLimits::of_this_process(),
            journal: journal.clone(),
            tracer,
        };
        let (name, adapters) = (settings.name.clone(), settings.adapters.clone());
        let app = Arc::new(App::new(engine, texts, template, settings, Arc::clone(&metrics)));
        model_folder::ends_in_order();
        let served = lifetime::serve(socket, Arc::clone(&app), || {
            announcement::announce(address, app.engine(), &name, adapters, global, terminal)
        });
        let lost = app.engine().check_health().err();
        // The engine finishes what it has; then nothing more is told.
        drop(app);
        drop(exporter);
        let counts = metrics.counts();
        terminal.note(&format!(
            "stopped: {} answered, {} failed, {} abandoned, {} refused",
            counts.finished, counts.failed, counts.cancelled, counts.refused
        ));
        let proposals = SpeculationCounts {
            accepted: counts.accepted_proposals,
            rejected: counts.rejected_proposals,
        };
        if let Some(note) = speculation_args::told(proposals) {
            terminal.note(&note);
        }
        crate::args::flush(&journal, terminal);
        if let Some(live) = live {
            live.end();
        }
        served?;
        match lost {
            Some(fault) => {
                let mut failure = Failure::from(fault);
                if is_isolated() {
                    // Also if a thread has ended: another process has all of them.
                    failure.exit = Exit::DeviceLost;
                }
                Err(failure)
            }
            None => Ok(Exit::Done),
        }
    }

    /// Serves in a child process that is started again when it dies or has no device left. Clients are connected to
    /// this process, which sends their requests on, and sends them again to the next child if there is need.
    fn supervise(
        &self,
        address: SocketAddr,
        (keys, origins): (Keys, Origins),
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let Listening { socket, address, .. } = listener::listen(address)?;
        let private = PrivateSocket::bind()?;
        let settings = self.gateway_settings((keys, origins), Journal::off());
        let grace = settings.timeout + LONGEST_END;
        let page = watch::free_port(self.watch)?;
        let gateway = Arc::new(ProcessGateway::new(private.address, settings));
        let serving = lifetime::serve_process(socket, Arc::clone(&gateway));
        let ended =
            supervise_by(supervisor(grace), terminal, global.open_journal()?, |command, _| {
                gateway.begin();
                private.pass_on(address, command);
                watch::pass_on(page, command);
            });
        gateway.end();
        let served = serving.join();
        let exit = ended?;
        // A panic in it was told when it happened.
        served.unwrap_or(Ok(()))?;
        Ok(exit)
    }

    /// The settings of a server that passes requests on to processes.
    fn gateway_settings(
        &self,
        (keys, origins): (Keys, Origins),
        journal: Journal,
    ) -> ServerSettings {
        ServerSettings {
            name: String::new(),
            adapters: Vec::new(),
            keys,
            max_body: usize::try_from(self.limits.max_body.0).unwrap_or(usize::MAX),
            max_tokens: self.limits.max_tokens as usize,
            timeout: Duration::from_secs(u64::from(self.limits.timeout)),
            origins,
            connections: ConnectionLimits::of_this_gateway(),
            journal,
            tracer: None,
        }
    }

    fn name(&self) -> Result<String, Failure> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let whole = std::fs::canonicalize(&self.model).unwrap_or_else(|_| self.model.clone());
        whole.file_name().map(|name| name.to_string_lossy().into_owned()).ok_or_else(|| {
            Failure::usage(format!("{} has no name", self.model.display()))
                .hint("--name NAME, as clients should call it")
        })
    }

    /// The template of chats. A model whose own template can't be used still serves completions;
    /// a template that the operator asked for has to work.
    fn template(&self, folder: &Path) -> Result<Result<Option<Template>, ChatError>, Failure> {
        let Some(name) = &self.chat_template else {
            return Ok(Template::of_folder(folder));
        };
        let template = Template::named(name, folder).map_err(|error| {
            Failure::usage("the chat template can't be used")
                .caused_by(&error)
                .hint("--chat-template FILE, chatml or plain")
        })?;
        Ok(Ok(Some(template)))
    }
}

/// Refuses a model whose files have another digest than the one that is expected.
fn check_digest(opened: &Opened, name: &str, expected: &str) -> Result<(), Failure> {
    let digest = Identity::read(opened)?.digest();
    if digest.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the files of '{name}' in {} have the digest {digest}, not {expected}",
        opened.folder.display()
    ))
    .hint("put the weights there that the other replicas have, or change --expect-digest"))
}
