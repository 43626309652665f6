"""One chat question through the official client; fails unless an answer comes back. argv: base URL."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
model = client.models.list().data[0].id
question = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
whole = client.chat.completions.create(model=model, messages=question, max_tokens=40, temperature=0)
answer = whole.choices[0].message.content
stream = client.chat.completions.create(model=model, messages=question, max_tokens=40, temperature=0, stream=True)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
print(f"{model}: {answer}")
assert answer, "the answer is empty"
assert streamed == answer, f"streamed: {streamed!r}"
