// OpenAI's and LangChain's Node packages against a running service: list, ask, stream, follow up.
//
//   npm install --no-save openai @langchain/openai
//   node benchmarks/clients/node_client.mjs http://127.0.0.1:8080/v1 medagent
//
// Prints a line for each client; exit status 1 where one failed.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url = "http://127.0.0.1:8080/v1", model = "medagent"] = process.argv.slice(2);
const QUESTION = "What is the first-line drug for trachoma?";
const FOLLOW_UP = "What is its classic sign?";
// Packages are looked up where the command is run.
const find = createRequire(pathToFileURL(`${process.cwd()}/`));

function check(asked, streamed, followed) {
  assert.match(asked, /\[\d+\]/, "the answer cites nothing");
  assert.equal(streamed.trim(), asked.trim(), "the streamed answer differs");
  assert.ok(followed.trim() && followed.trim() !== asked.trim(), `follow-up: ${followed}`);
}

async function withOpenAI() {
  const { default: OpenAI } = await import(pathToFileURL(find.resolve("openai")));
  const client = new OpenAI({ baseURL: url, apiKey: "none" });
  const models = [];
  for await (const each of await client.models.list()) models.push(each.id);
  assert.ok(models.includes(model), `models: ${models}`);
  const ask = (messages, more = {}) => client.chat.completions.create({ model, messages, temperature: 0, ...more });
  const said = [{ role: "user", content: QUESTION }];
  const asked = (await ask(said)).choices[0].message.content;
  let streamed = "";
  let thoughts = "";
  for await (const chunk of await ask(said, { stream: true })) {
    streamed += chunk.choices[0].delta.content ?? "";
    thoughts += chunk.choices[0].delta.reasoning_content ?? "";
  }
  assert.ok(thoughts, "no search came as reasoning_content");
  const followed = await ask([...said, { role: "assistant", content: asked }, { role: "user", content: FOLLOW_UP }]);
  check(asked, streamed, followed.choices[0].message.content);
}

async function withLangChain() {
  const { ChatOpenAI } = await import(pathToFileURL(find.resolve("@langchain/openai")));
  const chat = new ChatOpenAI({ model, temperature: 0, apiKey: "none", configuration: { baseURL: url } });
  const asked = (await chat.invoke(QUESTION)).content;
  let streamed = "";
  for await (const chunk of await chat.stream(QUESTION)) streamed += chunk.content;
  const followed = await chat.invoke([["user", QUESTION], ["assistant", asked], ["user", FOLLOW_UP]]);
  check(asked, streamed, followed.content);
}

for (const [name, drive] of Object.entries({ openai: withOpenAI, "@langchain/openai": withLangChain })) {
  try {
    await drive();
    console.log(`${name} (Node): passed`);
  } catch (error) {
    process.exitCode = 1;
    console.log(`${name} (Node): failed: ${error.message}`);
  }
}
