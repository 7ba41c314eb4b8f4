//! Turns the messages of a chat into a prompt, with the model's own Jinja template.
//!
//! The template is read from `chat_template.jinja`, or from `chat_template` in
//! `tokenizer_config.json` or the metadata of a GGUF file, which is a string or a list of named templates of which `default` is
//! used. Templates are written for Python's Jinja2 as transformers configures it, so strings and
//! lists have Python's methods here, and `raise_exception`, `strftime_now`, the special tokens and
//! the `{% generation %}` tag are available. A model without a template can't be used for chats
//! unless the operator names one: a file, `chatml`, or `plain`, which writes the role before each
//! message and nothing else.

mod clock;
mod generation_tag;
mod python_json;
mod tools;

use std::io::Read;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::{Map, Value};

use crate::folder::gguf;

pub use tools::{CallStyle, OfferedTool};

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
    takes_tools: bool,
    call_style: CallStyle,
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
                let chosen = of("default").or(named.first());
                match chosen.and_then(|one| one.get("template")).and_then(Value::as_str) {
                    Some(source) => Self::new(source, specials).map(Some),
                    None => Err(problem(&file, "'chat_template' lists no template")),
                }
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
        let (takes_tools, call_style) = (source.contains("tools"), CallStyle::of(source));
        let source = generation_tag::as_scopes(source);
        environment.add_template_owned(NAME, source.into_owned()).map_err(wrong)?;
        Ok(Self { environment, specials, takes_tools, call_style })
    }

    /// How the model writes calls of tools.
    pub fn call_style(&self) -> CallStyle {
        self.call_style
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
        let messages = tools::with_arguments_as_objects(messages);
        if tools.is_empty() {
            return self.render(&messages, minijinja::Value::from(()), true, variables);
        }
        if !self.takes_tools {
            let messages = tools::spelled_out(&messages, tools);
            return self.render(&messages, minijinja::Value::from(()), true, variables);
        }
        // As they came: a model was trained on keys in their usual order.
        let definitions: Result<Vec<minijinja::Value>, _> =
            tools.iter().map(|tool| serde_json::from_str(&tool.definition)).collect();
        let definitions = definitions.map_err(|error| ChatError::Messages(error.to_string()))?;
        self.render(&messages, definitions.into(), true, variables)
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

/// The special tokens by name: `bos_token` and its like, which are texts or objects with one.
/// What `tokenizer_config.json` of a folder, or the metadata of a GGUF file, say.
fn settings(model: &Path) -> Result<Map<String, Value>, ChatError> {
    if gguf::is_gguf(model) {
        return gguf::tokenizer_config(model).map_err(|error| problem(model, error.to_string()));
    }
    let file = model.join("tokenizer_config.json");
    if file.exists() { object(&file) } else { Ok(Map::new()) }
}

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
        assert_eq!(template.call_style(), CallStyle::Tagged);
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
}
