// Runs OpenAI's official client for Node against a server, and checks what it gets. `serve_clients.py --node DIR`
// starts it, where DIR has a node_modules with `openai` (`npm install openai`).
//
//     cd DIR && node serve_clients.mjs URL KEY

import { createRequire } from "node:module";

const { default: OpenAI, NotFoundError } = createRequire(`${process.cwd()}/`)("openai");
const [url, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey });

function check(what, isSo, seen = "") {
  console.log(`${isSo ? "ok    " : "FAILED"}  node: ${what}`);
  if (!isSo) {
    console.error(seen);
    process.exit(1);
  }
}

const parameters = {
  type: "object",
  properties: { Name: { type: "string", maxLength: 8 }, is_big: { type: "boolean" } },
  required: ["Name", "is_big"],
  additionalProperties: false,
};
const hasKeys = (text) => Object.keys(JSON.parse(text)).sort().join() === "Name,is_big";
const asked = { model: "tiny", max_tokens: 120, seed: 1, messages: [{ role: "user", content: "Hello" }] };

const models = await client.models.list();
check("models.list", models.data.map((model) => model.id).join() === "tiny", models);

const whole = await client.chat.completions.create(asked);
const stream = await client.chat.completions.create({ ...asked, stream: true });
let text = "";
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
check("a chat, whole and streamed, is the same", text === whole.choices[0].message.content, text);

const schema = { type: "json_schema", json_schema: { name: "p", schema: parameters, strict: true } };
const formed = await client.chat.completions.create({ ...asked, response_format: schema });
check("response_format json_schema", hasKeys(formed.choices[0].message.content), formed.choices[0]);

const tools = [{ type: "function", function: { name: "note", parameters } }];
const calling = { ...asked, tools, tool_choice: "required", parallel_tool_calls: false };
const called = await client.chat.completions.create(calling);
const call = called.choices[0].message.tool_calls[0];
check("a tool is called by its schema", call.function.name === "note" && hasKeys(call.function.arguments), call);

let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...calling, stream: true })) {
  for (const delta of chunk.choices[0]?.delta?.tool_calls ?? []) streamed += delta.function?.arguments ?? "";
}
check("the streamed call is the same", streamed === call.function.arguments, streamed);

const response = await client.responses.create({ model: "tiny", input: "Hello", max_output_tokens: 20 });
check("responses.create", typeof response.output_text === "string" && response.usage.output_tokens > 0, response);

const kinds = [];
const events = await client.responses.create({ model: "tiny", input: "Hello", max_output_tokens: 20, stream: true });
for await (const event of events) kinds.push(event.type);
check("responses.create, streamed", kinds[0] === "response.created" && kinds.length > 6, kinds);

const tool = { type: "function", name: "note", parameters, strict: true };
const withTool = { model: "tiny", input: "Hello", max_output_tokens: 120, tools: [tool], tool_choice: "required" };
const calls = (await client.responses.create(withTool)).output.filter((item) => item.type === "function_call");
check("responses.create with tools", calls.length > 0 && hasKeys(calls[0].arguments), calls);

let done = "";
for await (const event of await client.responses.create({ ...withTool, stream: true })) {
  if (event.type === "response.function_call_arguments.done") done ||= event.arguments;
}
check("responses.create with tools, streamed", hasKeys(done), done);

const vectors = await client.embeddings.create({ model: "tiny", input: ["one", "two"], dimensions: 8 });
check("embeddings with dimensions", vectors.data.length === 2 && vectors.data[0].embedding.length === 8, vectors);

try {
  await client.completions.create({ model: "other", prompt: "x" });
  check("an unknown model is an error", false);
} catch (error) {
  check("an unknown model is an error", error instanceof NotFoundError && error.code === "model_not_found", error);
}
