//! Turns the messages of a chat into a prompt, with the model's own Jinja template.
//!
//! The template is read from `chat_template.jinja`, or from `chat_template` in
//! `tokenizer_config.json` or the metadata of a GGUF file, which is a string or a list of named templates of which `default` is
//! used. Templates are written for Python's Jinja2 as transformers configures it, so strings and
//! lists have Python's methods here, and `raise_exception`, `strftime_now`, the special tokens and
//! the `{% generation %}` tag are available. A model without a template can't be used for chats
//! unless the operator names one: a file, `chatml`, or `plain`, which writes the role before each
//! message and nothing else.

mod call_style;
mod clock;
mod generation_tag;
mod python_json;
mod tools;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::{Map, Value, json};

use crate::folder::gguf;

pub use call_style::{CallSpace, CallStyle};
pub use tools::OfferedTool;
use tools::ToolsPlace;

/// Larger than any published template or tokenizer configuration.
const MAX_FILE: u64 = 8 << 20;
const NAME: &str = "chat";

/// `role: text` for each message, and the assistant's turn.
const PLAIN: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// The format of many models that were tuned to chat.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// A file can't be read, or is not what it should be.
    #[error("{}: {problem}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The template can't be understood.
    #[error("the chat template is wrong: {0}")]
    Template(String),
    /// The template refuses these messages.
    #[error("the chat template refuses the messages: {0}")]
    Messages(String),
}

/// A template that was read and understood.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    specials: Map<String, Value>,
    tools_place: ToolsPlace,
    call_style: Arc<CallStyle>,
    /// Whether it writes the calls of earlier answers.
    writes_calls: bool,
    /// Whether it refuses calls that are not known by nine letters.
    wants_short_ids: bool,
    /// The template for chats with tools, where that is another one.
    with_tools: Option<Box<Template>>,
}

impl Template {
    /// The template of a model folder or GGUF file, if it has one.
    pub fn of_folder(folder: &Path) -> Result<Option<Self>, ChatError> {
        let file = folder.join("tokenizer_config.json");
        let settings = settings(folder)?;
        let specials = specials(&settings);
        let beside = folder.join("chat_template.jinja");
        if beside.exists() {
            return Self::new(&text(&beside)?, specials).map(Some);
        }
        match settings.get("chat_template") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(source)) => Self::new(source, specials).map(Some),
            Some(Value::Array(named)) => {
                let of = |name: &str| {
                    named.iter().find(|one| one.get("name").and_then(Value::as_str) == Some(name))
                };
                let source = |one: &'_ Value| Some(one.get("template")?.as_str()?.to_owned());
                let Some(chosen) = of("default").or(named.first()).and_then(source) else {
                    return Err(problem(&file, "'chat_template' lists no template"));
                };
                let mut template = Self::new(&chosen, specials.clone())?;
                if let Some(with_tools) = of("tool_use").and_then(source) {
                    template.with_tools = Some(Box::new(Self::new(&with_tools, specials)?));
                }
                Ok(Some(template))
            }
            Some(_) => Err(problem(&file, "'chat_template' is neither a text nor a list")),
        }
    }

    /// The template that an operator named: `plain`, `chatml` or a file; with the special tokens
    /// of `folder`.
    pub fn named(name: &str, folder: &Path) -> Result<Self, ChatError> {
        let specials = specials(&settings(folder)?);
        match name {
            "plain" => Self::new(PLAIN, specials),
            "chatml" => Self::new(CHATML, specials),
            path => Self::new(&text(Path::new(path))?, specials),
        }
    }

    fn new(source: &str, specials: Map<String, Value>) -> Result<Self, ChatError> {
        let wrong = |error: Error| ChatError::Template(told(&error));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(wrong)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", python_json::tojson);
        environment.add_function("strftime_now", |format: String| clock::now(&format));
        environment.add_filter("indent", indent);
        let scoped = generation_tag::as_scopes(source);
        environment.add_template_owned(NAME, scoped.into_owned()).map_err(wrong)?;
        let mut template = Self {
            environment,
            specials,
            tools_place: ToolsPlace::Nowhere,
            call_style: Arc::new(CallStyle::tagged()),
            writes_calls: true,
            wants_short_ids: false,
            with_tools: None,
        };
        if source.contains("tools") {
            template.look_at_tools(source);
        }
        Ok(template)
    }

    /// Finds out how the template takes tools and writes calls, by having it write some.
    fn look_at_tools(&mut self, source: &str) {
        let mut chat = vec![json!({"role": "user", "content": "Hello."})];
        let tools = [tools::probe()];
        let place = [ToolsPlace::Variable, ToolsPlace::SystemMessage].into_iter().find(|place| {
            self.tools_place = *place;
            self.prompt_with_tools(&chat, &tools).is_ok_and(|text| text.contains(tools::PROBE))
        });
        self.tools_place = place.unwrap_or(ToolsPlace::Variable);
        let prompt = self.prompt_with_tools(&chat, &tools).unwrap_or_default();
        let mut shown = None;
        for calls in [2, 1] {
            chat.truncate(1);
            chat.push(CallStyle::probe(calls));
            let Ok(text) = self.rendered_with_tools(&chat, &tools, false, &Map::new()) else {
                continue;
            };
            self.writes_calls = text.contains("probe_call_a");
            shown = CallStyle::shown_by(&text, &prompt).filter(|_| !prompt.is_empty());
            break;
        }
        self.call_style = Arc::new(shown.unwrap_or_else(|| CallStyle::named_by(source)));
        chat[1]["tool_calls"][0]["id"] = "call_0123456789_0_0".into();
        if let Some(calls) = chat[1]["tool_calls"].as_array_mut() {
            calls.truncate(1);
        }
        let is_taken = self.rendered_with_tools(&chat, &tools, false, &Map::new()).is_ok();
        chat[1] = CallStyle::probe(1);
        self.wants_short_ids =
            !is_taken && self.rendered_with_tools(&chat, &tools, false, &Map::new()).is_ok();
    }

    /// How the model writes calls of tools.
    pub fn call_style(&self) -> &Arc<CallStyle> {
        self.with_tools.as_ref().map_or(&self.call_style, |template| template.call_style())
    }

    /// The prompt for `messages`, up to where the assistant begins to speak.
    pub fn prompt(&self, messages: &[Value]) -> Result<String, ChatError> {
        self.prompt_with_tools(messages, &[])
    }

    /// The text of `messages` that are all there, as a model is trained on it.
    pub fn text(&self, messages: &[Value]) -> Result<String, ChatError> {
        self.render(messages, minijinja::Value::from(()), false, &Map::new())
    }

    /// The prompt for `messages` of an assistant that may call tools. A template that knows no tools
    /// has them told by the system.
    pub fn prompt_with_tools(
        &self,
        messages: &[Value],
        tools: &[OfferedTool],
    ) -> Result<String, ChatError> {
        self.prompt_with_variables(messages, tools, &Map::new())
    }

    /// The same, with variables of the template, such as `enable_thinking`, which many models know. `messages` and
    /// `tools` can't be replaced by them.
    pub fn prompt_with_variables(
        &self,
        messages: &[Value],
        tools: &[OfferedTool],
        variables: &Map<String, Value>,
    ) -> Result<String, ChatError> {
        self.rendered_with_tools(messages, tools, true, variables)
    }

    fn rendered_with_tools(
        &self,
        messages: &[Value],
        tools: &[OfferedTool],
        add_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, ChatError> {
        if let Some(template) = self.with_tools.as_ref().filter(|_| !tools.is_empty()) {
            return template.rendered_with_tools(messages, tools, add_prompt, variables);
        }
        let mut messages = tools::with_arguments_as_objects(messages);
        if self.wants_short_ids {
            messages = tools::with_short_ids(&messages);
        }
        if !self.writes_calls {
            messages = tools::with_calls_as_text(&messages, &self.call_style);
        }
        let no_tools = minijinja::Value::from(());
        if tools.is_empty() {
            return self.render(&messages, no_tools, add_prompt, variables);
        }
        match self.tools_place {
            ToolsPlace::Variable => {}
            ToolsPlace::SystemMessage => {
                messages = tools::beside_system(&messages, tools);
                return self.render(&messages, no_tools, add_prompt, variables);
            }
            ToolsPlace::Nowhere => {
                messages = tools::spelled_out(&messages, tools);
                return self.render(&messages, no_tools, add_prompt, variables);
            }
        }
        // As they came: a model was trained on keys in their usual order.
        let definitions: Result<Vec<minijinja::Value>, _> =
            tools.iter().map(|tool| serde_json::from_str(&tool.definition)).collect();
        let definitions = definitions.map_err(|error| ChatError::Messages(error.to_string()))?;
        self.render(&messages, definitions.into(), add_prompt, variables)
    }

    fn render(
        &self,
        messages: &[Value],
        tools: minijinja::Value,
        add_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, ChatError> {
        let refused = |error: Error| ChatError::Messages(told(&error));
        let template = self.environment.get_template(NAME).map_err(refused)?;
        // What comes first counts.
        let rendered = template.render(context! {
            ..context! { messages => Serde(messages), tools => tools },
            ..minijinja::Value::from(Serde(variables)),
            ..context! { add_generation_prompt => add_prompt, documents => () },
            ..minijinja::Value::from(Serde(&self.specials))
        });
        rendered.map_err(refused)
    }
}

/// The filter `indent` with the names that Jinja2 has for its arguments.
fn indent(text: &str, width: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let named: Option<usize> = kwargs.get("width")?;
    let (first, blank): (Option<bool>, Option<bool>) = (kwargs.get("first")?, kwargs.get("blank")?);
    kwargs.assert_all_used()?;
    let space = " ".repeat(width.or(named).unwrap_or(4).min(256));
    let mut indented = String::with_capacity(text.len());
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let is_blank = line.trim().is_empty() && blank != Some(true);
        if if number == 0 { first == Some(true) } else { !is_blank } {
            indented.push_str(&space);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// What `tokenizer_config.json` of a folder, or the metadata of a GGUF file, say.
fn settings(model: &Path) -> Result<Map<String, Value>, ChatError> {
    if gguf::is_gguf(model) {
        return gguf::tokenizer_config(model).map_err(|error| problem(model, error.to_string()));
    }
    let file = model.join("tokenizer_config.json");
    if file.exists() { object(&file) } else { Ok(Map::new()) }
}

/// The special tokens by name: `bos_token` and its like, which are texts or objects with one.
fn specials(settings: &Map<String, Value>) -> Map<String, Value> {
    settings
        .iter()
        .filter(|(key, _)| key.ends_with("_token"))
        .filter_map(|(key, value)| {
            let token = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.clone(), Value::String(token.to_owned())))
        })
        .collect()
}

fn told(error: &Error) -> String {
    error.detail().map_or_else(|| error.to_string(), str::to_owned)
}

fn problem(file: &Path, problem: impl Into<String>) -> ChatError {
    ChatError::File { file: file.to_owned(), problem: problem.into() }
}

fn text(file: &Path) -> Result<String, ChatError> {
    let unreadable = |error: std::io::Error| problem(file, format!("can't be read: {error}"));
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    opened.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err(problem(file, format!("is larger than {MAX_FILE} bytes")));
    }
    Ok(text)
}

fn object(file: &Path) -> Result<Map<String, Value>, ChatError> {
    match serde_json::from_str(&text(file)?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(problem(file, "is not a JSON object")),
        Err(error) => Err(problem(file, format!("can't be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(source: &str, messages: Value) -> Result<String, ChatError> {
        let specials = specials(
            json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 5})
                .as_object()
                .unwrap(),
        );
        Template::new(source, specials)?.prompt(messages.as_array().unwrap())
    }

    #[test]
    fn a_template_in_the_style_of_published_ones_is_rendered_as_python_would() {
        // Namespaces, loop controls, slices, methods of strings, blocks that are trimmed.
        let source = "\
{{- bos_token }}
{%- set ns = namespace(turns=0) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'].strip() %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if loop.first and system %}
[{{ system | upper }}]
    {%- endif %}
<{{ message.role }}>{{ message.content.split('|')[0] | trim }}</{{ message.role.title() }}>{{ eos_token if message.role == 'assistant' }}
{% endfor %}
{%- if add_generation_prompt %}
<assistant {{ ns.turns }}>
{%- endif %}";
        let messages = json!([
            {"role": "system", "content": " be brief "},
            {"role": "user", "content": "hello | you"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "bye"},
        ]);
        assert_eq!(
            rendered(source, messages).unwrap(),
            "<s>[BE BRIEF]<user>hello</User>\n<assistant>hi</Assistant></s>\n<user>bye</User>\n\
             <assistant 3>",
            "as Jinja2 renders it in Python"
        );
        let wrong = json!([{"role": "assistant", "content": "x"}]);
        let refusal = rendered(source, wrong).unwrap_err().to_string();
        assert!(refusal.contains("roles must alternate"), "{refusal}");
    }

    #[test]
    fn variables_of_a_request_reach_the_template_and_replace_no_messages() {
        let source = "{{ bos_token }}{{ messages|length }}{{ tools is none }}{{ add_generation_prompt }}\
                      {{ enable_thinking is defined and enable_thinking }}{{ budget.tokens if budget is defined }}";
        let template = Template::new(source, Map::new()).unwrap();
        let with = |variables: Value| {
            let messages = [json!({"role": "user", "content": "x"})];
            template.prompt_with_variables(&messages, &[], variables.as_object().unwrap()).unwrap()
        };
        assert_eq!(with(json!({})), "1TrueTrueFalse");
        let all = json!({
            "enable_thinking": true, "budget": {"tokens": 7}, "add_generation_prompt": false, "bos_token": "<b>",
            "messages": [], "tools": [],
        });
        assert_eq!(with(all), "<b>1TrueFalseTrue7");
    }

    #[test]
    fn generation_tags_are_ignored_as_transformers_ignores_them_when_it_renders() {
        let source = "\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {%- set said = message.content %}
{{- said + eos_token }}
        {%- endgeneration %}
        {%- if said is defined %}leaked{% endif %}
    {%- else %}
{{- '[' + message.content + ']' }}
    {%- endif %}
{%- endfor %}";
        let messages = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "bye"},
        ]);
        assert_eq!(rendered(source, messages).unwrap(), "[hi]hello</s>[bye]");
    }

    #[test]
    fn tools_are_written_as_python_writes_json_and_in_the_order_of_the_client() {
        let source = "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}<tool_call>\
{%- for call in messages[0].tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}";
        let template = Template::new(source, Map::new()).unwrap();
        assert_eq!(**template.call_style(), CallStyle::tagged());
        let tool = OfferedTool {
            name: "f".to_owned(),
            parameters: "{}".to_owned(),
            definition: r#"{"type":"function","function":{"name":"f","a":[1,"<é>"]}}"#.to_owned(),
        };
        let call = json!({"function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let messages = [json!({"role": "assistant", "content": "", "tool_calls": [call]})];
        assert_eq!(
            template.prompt_with_tools(&messages, &[tool]).unwrap(),
            "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"a\": [1, \"<é>\"]}}\n<tool_call>{\"x\": 1}"
        );
    }

    #[test]
    fn the_named_templates_put_the_assistant_last() {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        assert_eq!(rendered(PLAIN, messages.clone()).unwrap(), "user: Hi\nassistant:");
        assert_eq!(
            rendered(CHATML, messages).unwrap(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn a_gguf_file_gives_its_template_and_special_tokens() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/llama-tiny.Q8_0.gguf");
        let messages = [json!({"role": "user", "content": "hi"})];
        let template = Template::of_folder(&file).unwrap().unwrap();
        assert_eq!(template.prompt(&messages).unwrap(), "<user>hi");
        assert_eq!(settings(&file).unwrap()["eos_token"], "<|endoftext|>");
        assert!(Template::of_folder(Path::new("/nonexistent.gguf")).is_err());
    }

    #[test]
    fn a_folder_gives_its_template_from_either_file_and_none_if_it_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(Template::of_folder(path).unwrap().is_none());
        let config = |value: Value| {
            std::fs::write(path.join("tokenizer_config.json"), value.to_string()).unwrap();
        };
        let says = |path: &Path| Template::of_folder(path).unwrap().unwrap().prompt(&[]).unwrap();
        config(json!({"bos_token": "<s>"}));
        assert!(Template::of_folder(path).unwrap().is_none());
        config(json!({"bos_token": "<s>", "chat_template": "{{ bos_token }} one"}));
        assert_eq!(says(path), "<s> one");
        config(json!({"chat_template": [
            {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"},
        ]}));
        assert_eq!(says(path), "two");
        std::fs::write(path.join("chat_template.jinja"), "three").unwrap();
        assert_eq!(says(path), "three");
        std::fs::write(path.join("chat_template.jinja"), "{% if %}").unwrap();
        assert!(Template::of_folder(path).unwrap_err().to_string().contains("wrong"));
        std::fs::remove_file(path.join("chat_template.jinja")).unwrap();
        config(json!({"chat_template": 7}));
        assert!(Template::of_folder(path).is_err());
        assert!(Template::named("plain", path).is_ok());
        assert!(Template::named("/nonexistent.jinja", path).is_err());
    }

    /// A chat in which a tool was called twice, and the tool.
    fn chat_with_calls() -> (Vec<Value>, OfferedTool) {
        let tool = OfferedTool {
            name: "find".to_owned(),
            parameters: "{}".to_owned(),
            definition: r#"{"type":"function","function":{"name":"find","description":"Finds.","parameters":{"type":"object","properties":{"q":{"type":"string","description":"What."}},"required":["q"]}}}"#.to_owned(),
        };
        let call = |id: &str, q: &str| {
            let arguments = json!({"q": q}).to_string();
            json!({"id": id, "type": "function", "function": {"name": "find", "arguments": arguments}})
        };
        let calls = [call("call_17_0_0", "a"), call("call_17_0_1", "b")];
        let messages = vec![
            json!({"role": "user", "content": "Look."}),
            json!({"role": "assistant", "content": "", "tool_calls": calls}),
            json!({"role": "tool", "tool_call_id": "call_17_0_0", "content": "7"}),
        ];
        (messages, tool)
    }

    fn template(source: &str) -> Template {
        let specials = json!({"bos_token": "<s>", "eos_token": "</s>"});
        Template::new(source, specials.as_object().unwrap().clone()).unwrap()
    }

    /// The prompt of a template for a chat with calls.
    fn prompt_with_calls(source: &str) -> (CallStyle, String) {
        let template = template(source);
        let (messages, tool) = chat_with_calls();
        let prompt = template.prompt_with_tools(&messages, &[tool]).unwrap();
        ((**template.call_style()).clone(), prompt)
    }

    /// A list of `name` and `arguments`.
    fn style(marker: &str, end_marker: &str, space: CallSpace) -> CallStyle {
        CallStyle {
            marker: marker.to_owned(),
            end_marker: end_marker.to_owned(),
            is_list: true,
            space,
            ..CallStyle::tagged()
        }
    }

    #[test]
    fn mistrals_calls_are_a_list_and_known_by_nine_letters() {
        let (found, prompt) = prompt_with_calls(include_str!("templates/mistral.jinja"));
        let space = CallSpace {
            behind_marker: " ".to_owned(),
            in_list: " ".to_owned(),
            ..CallSpace::default()
        };
        let expected = CallStyle {
            id_keys: [None, Some("id".to_owned())],
            ..style("[TOOL_CALLS]", "", space)
        };
        assert_eq!(found, expected);
        assert!(
            prompt.contains(
                "[AVAILABLE_TOOLS] [{\"type\": \"function\", \"function\": {\"name\": \"find\""
            ),
            "{prompt}"
        );
        assert!(prompt.ends_with("[TOOL_CALLS] [{\"name\": \"find\", \"arguments\": {\"q\": \"a\"}, \"id\": \"call00000\"}, {\"name\": \"find\", \"arguments\": {\"q\": \"b\"}, \"id\": \"call00001\"}]</s>[TOOL_RESULTS] {\"content\": 7, \"call_id\": \"call00000\"}[/TOOL_RESULTS]"), "{prompt}");
    }

    #[test]
    fn granite_says_in_words_how_calls_are_written_and_they_are_part_of_the_text() {
        let (found, prompt) = prompt_with_calls(include_str!("templates/granite.jinja"));
        assert_eq!(found, style("<|tool_call|>", "", CallSpace::default()));
        assert!(prompt.contains("\"name\": \"find\""), "{prompt}");
        assert!(prompt.contains("<|start_of_role|>assistant<|end_of_role|><|tool_call|>[{\"name\": \"find\", \"arguments\": {\"q\":\"a\"}}, {\"name\": \"find\", \"arguments\": {\"q\":\"b\"}}]<|end_of_text|>"), "{prompt}");
        assert!(prompt.ends_with("<|start_of_role|>assistant<|end_of_role|>"), "{prompt}");
    }

    #[test]
    fn command_r_has_actions_and_keys_of_its_own() {
        let (found, prompt) = prompt_with_calls(include_str!("templates/command-r7b.jinja"));
        let expected = CallStyle {
            name_key: "tool_name".to_owned(),
            arguments_key: "parameters".to_owned(),
            id_keys: [Some("tool_call_id".to_owned()), None],
            ..style("<|START_ACTION|>", "<|END_ACTION|>", found.space.clone())
        };
        assert_eq!(found, expected);
        assert!(found.space.in_list.starts_with('\n') && found.space.before_end == "\n");
        assert!(prompt.contains("{\"tool_call_id\": \"1\", \"tool_name\": \"find\", \"parameters\": {\"q\": \"b\"}}\n]<|END_ACTION|>"), "{prompt}");
        let (found, prompt) = prompt_with_calls(include_str!("templates/command-r-plus.jinja"));
        let expected = CallStyle {
            name_key: "tool_name".to_owned(),
            arguments_key: "parameters".to_owned(),
            ..style("Action:\n```json", "```", found.space.clone())
        };
        assert_eq!(found, expected);
        assert_eq!(found.space.in_call, "\n        ");
        assert!(
            prompt.contains("def find(") && prompt.contains("\"tool_name\": \"find\""),
            "{prompt}"
        );
    }

    #[test]
    fn phi_takes_tools_from_the_systems_message() {
        let (found, prompt) = prompt_with_calls(include_str!("templates/phi-4-mini.jinja"));
        assert_eq!(found, style("<|tool_call|>", "<|/tool_call|>", CallSpace::default()));
        assert!(
            prompt.starts_with(
                "<|system|>You are a helpful assistant with some tools.<|tool|>[{\"name\":\"find\""
            ),
            "{prompt}"
        );
        assert!(prompt.contains("<|assistant|><|tool_call|>[{\"name\": \"find\""), "{prompt}");
        let (found, prompt) =
            prompt_with_calls(include_str!("templates/phi-4-mini-functools.jinja"));
        assert_eq!(found, style("functools[", "", found.space.clone()));
        assert!(
            prompt.contains("functools[{\"name\": \"find\", \"arguments\": {\"q\": \"a\"}}, {"),
            "{prompt}"
        );
    }

    #[test]
    fn qwen_and_llama_are_read_as_they_were() {
        let (found, prompt) = prompt_with_calls(include_str!("templates/qwen.jinja"));
        assert_eq!(found, CallStyle::tagged());
        assert!(prompt.contains("<|im_start|>assistant\n<tool_call>\n{\"name\": \"find\", \"arguments\": {\"q\": \"a\"}}\n</tool_call>\n<tool_call>"), "{prompt}");
        let template = template(include_str!("templates/llama-3.jinja"));
        assert_eq!(**template.call_style(), CallStyle::bare());
    }

    #[test]
    fn a_template_of_its_own_for_tools_is_used_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"chat_template": [
            {"name": "default", "template": "no functions"},
            {"name": "tool_use", "template": include_str!("templates/mistral.jinja")},
        ], "bos_token": "<s>", "eos_token": "</s>"});
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let template = Template::of_folder(folder.path()).unwrap().unwrap();
        let (messages, tool) = chat_with_calls();
        assert_eq!(template.call_style().marker, "[TOOL_CALLS]");
        assert_eq!(template.prompt(&messages[..1]).unwrap(), "no functions");
        assert!(template.prompt_with_tools(&messages, &[tool]).unwrap().contains("[TOOL_CALLS]"));
    }
}
