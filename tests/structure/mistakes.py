"""Mistakes of many kinds, one wrong line each. tests/planted_mistakes.py plants them and says which tests find them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong line."""

    name: str
    package: str  # a folder
    right: str
    wrong: str
    near: str  # tests that lie nearest, separated by spaces


# By package and nearest tests: what it is called, what is right, and what is wrong.
_PLACES: dict[tuple[str, str], list[tuple[str, str, str]]] = {
    ("wire", "tests/wire"): [
        ("A page of shared memory whose cells overlap", "self._next_cell += 8 * count", "self._next_cell += 4 * count"),
        (
            "A large frame that begins a byte early",
            "self._large_filled = self._end - body",
            "self._large_filled = self._end - body - 1",
        ),
    ],
    ("wire", "tests/wire/test_frames.py"): [
        ("A peer of an older version is let in", "if version != VERSION:", "if version > VERSION:")
    ],
    ("tokenizer_pool", "tests/tokenizer_pool"): [
        (
            "Texts that are far too long lose the wrong end",
            "is_left = self.truncation is Truncation.LEFT",
            "is_left = self.truncation is Truncation.RIGHT",
        ),
        (
            "Bulk work goes before interactive work",
            "(self._bulk if self.is_bulks_turn else self._interactive)",
            "(self._bulk if self._bulk else self._interactive)",
        ),
        (
            "Ids of the greatest length count as truncated",
            "is_long = seqlens > max_seqlen",
            "is_long = seqlens >= max_seqlen",
        ),
    ],
    ("batch_manager", "tests/batch_manager"): [
        (
            "Sequences of a lost engine come back in reverse",
            "self._returned.extendleft(reversed(slices))",
            "self._returned.extendleft(slices)",
        ),
        (
            "The rate is learnt from small batches",
            "if 2 * num_tokens < max_tokens and newest",
            "if 2 * num_tokens > max_tokens and newest",
        ),
        (
            "A sequence that does not fit goes into the batch",
            "if taken or (batch.slices and not has_room):",
            "if taken:",
        ),
    ],
    ("engine", "tests/engine tests/engine/cpu"): [
        (
            "A mean over one token too many",
            "found = rows.sum(axis=0, dtype=np.float64) / len(rows)",
            "found = rows.sum(axis=0, dtype=np.float64) / (len(rows) + 1)",
        )
    ],
    ("engine/cpu", "tests/engine/cpu tests/parity/test_parity.py"): [
        (
            "Tokens that others must not see are seen",
            "(is_token if is_hidden is None else is_token & ~is_hidden[index])",
            "is_token",
        )
    ],
    ("engine/cpu", "tests/engine/cpu/test_engine.py"): [
        (
            "Padding has the wrong id",
            "np.where(is_token, batch.token_ids[index], pad_id)",
            "np.where(is_token, batch.token_ids[index], 5)",
        )
    ],
    ("engine/transformers", "tests/engine/transformers/test_attention.py"): [
        ("Sliding windows are ignored", "window=seen.window or bounds[-1],", "window=bounds[-1],"),
        (
            "A sequence's last tokens see what its first ones do",
            "or (rule.is_causal and query.shape[2] < key.shape[2])",
            "",
        ),
        (
            "A model's own scaling of attention is ignored",
            "scaling=query.shape[3] ** -0.5 if scaling is None else scaling,",
            "scaling=query.shape[3] ** -0.5,",
        ),
    ],
    ("engine/transformers", "tests/engine/transformers/test_visibility.py"): [
        ("Layers may number the tokens of a packed row", "if made.is_floating_point():", "if False:")
    ],
    ("engine/transformers", "tests/engine/transformers/test_heads.py"): [
        (
            "SPLADE sums where it takes the largest",
            "return rows.sum(dim=0) if self._sums else rows.amax(dim=0)",
            "return rows.sum(dim=0)",
        )
    ],
    ("engine/transformers", "tests/engine/transformers/test_lora.py"): [
        (
            "An adapter is added without its scale",
            "found.addmm_(rows @ self.a, self.b, alpha=self.scale)",
            "found.addmm_(rows @ self.a, self.b)",
        )
    ],
    ("engine/fused", "tests/engine/fused/runner tests/engine/fused"): [
        (
            "The last token is the next sequence's first",
            "return last_tokens(batch, self.padding_id).astype(np.int32)",
            "return last_tokens(batch, self.padding_id).astype(np.int32) + 1",
        )
    ],
    ("engine/fused", "tests/engine/fused/kernels/test_kernels.py"): [
        ("A kernel takes RMS norms for layer norms", '        IS_RMS=norm.kind == "rms",', "        IS_RMS=False,")
    ],
    ("engine/fused", "tests/engine/fused/kernels/test_vocabulary.py"): [
        (
            "The largest score of a word is taken over padding too",
            "tl.where((product < 0.0) | ~is_row[:, None], 0.0, product)",
            "tl.where(product < 0.0, 0.0, product)",
        ),
        ("Words of a slice have the ids of the first", "(first_word + place).to(tl.float32)", "place.to(tl.float32)"),
    ],
    ("engine/fused", "tests/engine/fused/runner/test_cuda_device.py"): [
        ("Sparse rows that did not fit are served", "if offsets[-1] > room:", "if False:")
    ],
    ("engine/fused", "tests/engine/fused/model/test_fp8_linear.py"): [
        (
            "FP8 scales leave half of the range unused",
            "scales = weight.abs().amax(dim=1) / MAX_FP8",
            "scales = weight.abs().amax(dim=1) / (2 * MAX_FP8)",
        )
    ],
    ("engine/fused", "tests/engine/fused/model/test_heads.py"): [
        ("A reranker reads a row of padding", 'pooling="last", padding_id=config.pad_token_id', 'pooling="last"'),
        (
            "An answer's neighbour in the vocabulary is scored",
            "if head.no_id is None else (head.yes_id, head.no_id)",
            "if head.no_id is None else (head.yes_id + 1, head.no_id)",
        ),
        (
            "Any architecture's scores are squeezed",
            "config.final_logit_softcapping if config.model_type in _CAPPED else None",
            'getattr(config, "final_logit_softcapping", None)',
        ),
        (
            "A matrix of its own is taken for the embedding table",
            'torch.equal(matrix, read["words"])',
            'matrix.shape == read["words"].shape',
        ),
    ],
    ("engine/fused", "tests/parity/test_parity.py"): [
        ("A head lacks its tanh", 'activation: str = "tanh"', 'activation: str = "identity"'),
        (
            "Tokens that fill a query up are seen",
            "num_keys = num_visible(batch) if self.hides_tokens else None",
            "num_keys = None",
        ),
    ],
    ("engine/fused", "tests/engine/fused/quantization"): [
        (
            "The gate lets everything pass",
            "found, reverted = of_all, frozenset[str]()\n    if is_enforced and not of_all.passes:",
            "found, reverted = of_all, frozenset[str]()\n    if is_enforced and of_all.passes:",
        ),
        (
            "A label may win that did not",
            "(scores.argmax(axis=1) != right.argmax(axis=1))",
            "(scores.argmax(axis=1) == -1)",
        ),
        (
            "Scores are compared without their activation",
            "_labels(output, rows, right, self.activation)",
            "_labels(output, rows, right, Activation.IDENTITY)",
        ),
    ],
    ("engine/selftest", "tests/engine/selftest/test_fidelity.py"): [
        (
            "What all rows share hides errors of quantization",
            "mean = right.mean(axis=0)",
            "mean = 0 * right.mean(axis=0)",
        )
    ],
    ("engine/model", "tests/engine/model tests/parity"): [
        (
            "Positions that RoBERTa loses to its padding are used",
            "lost = 0 if padding_idx is None else padding_idx + 1",
            "lost = 0 if padding_idx is None else padding_idx",
        )
    ],
    ("engine/tensorrt_llm", "tests/engine/tensorrt_llm"): [
        (
            "TensorRT-LLM gets blocks of any size",
            'if config.get("weight_block_size") != [_BLOCK, _BLOCK]:',
            'if config.get("weight_block_size") is None:',
        ),
    ],
    (
        "engine/tensorrt_llm",
        "tests/engine/tensorrt_llm/test_engine_rows.py tests/engine/tensorrt_llm/test_engine_serving.py",
    ): [
        ("TensorRT-LLM: a causal mask where tokens see each other", "if not self.head.is_causal:", "if False:"),
        (
            "TensorRT-LLM: the full mask in the first layer alone",
            "for layer in layers:\n        layer.self_attn",
            "for layer in list(layers)[:1]:\n        layer.self_attn",
        ),
        ("TensorRT-LLM: the full mask where it is causal", "if not self.head.is_causal:", "if True:"),
        (
            "TensorRT-LLM: the token before the last one",
            "token_rows[(ends - 1).clamp(min=0)]",
            "token_rows[(ends - 2).clamp(min=0)]",
        ),
        ("TensorRT-LLM: starts taken for ends", "token_rows[(ends - 1).clamp(min=0)]", "token_rows[ends - seq_lens]"),
        ("TensorRT-LLM: another pooling than the model's", "pooling=folder.poolings[0],", 'pooling="mean",'),
        ("TensorRT-LLM: norms that are not linked", "            link_norms(self.model)\n", ""),
        (
            "TensorRT-LLM: each layer followed by its own norm",
            "[*(layer.input_layernorm for layer in layers[1:]), backbone.norm]",
            "[layer.input_layernorm for layer in layers]",
        ),
        ("TensorRT-LLM: the last norm forgotten", "layers[1:]), backbone.norm]", "layers[1:]), None]"),
        ("TensorRT-LLM: a score layer that was not loaded", "self.score.weight.data.copy_(rows)", "pass"),
        (
            "TensorRT-LLM: yes and no swapped",
            "yes_id=answer.yes_id,\n        no_id=answer.no_id,",
            "yes_id=answer.no_id,\n        no_id=answer.yes_id,",
        ),
        ("TensorRT-LLM: yes alone", "(yes if head.no_id is None else", "(yes if True else"),
        (
            "TensorRT-LLM: the embedding for the vocabulary's scores",
            "_EMBEDDING if is_tied else _VOCABULARY",
            "_EMBEDDING",
        ),
        (
            "TensorRT-LLM: a table of tokens that was not loaded",
            "filtered(prefix.removeprefix(PREFIX), weights)",
            'filtered(prefix.replace("model.layers", "layers"), weights)',
        ),
        ("TensorRT-LLM: a mean of padded sequences", "/ seq_lens.clamp(min=1)[:, None]", "/ seq_lens.max()"),
        (
            "TensorRT-LLM: the neighbour's first token counts",
            "device=ends.device), right=True)",
            "device=ends.device))",
        ),
        (
            "TensorRT-LLM: padding that counts for the last sequence",
            "device=ends.device), right=True)",
            "device=ends.device), right=True).clamp(max=len(ends) - 1)",
        ),
        (
            "TensorRT-LLM: a number that is read back",
            "num_tokens, size = token_rows.shape\n",
            "token_rows = token_rows[: int(seq_lens.sum())]\n    num_tokens, size = token_rows.shape\n",
        ),
        ("TensorRT-LLM: one token too many", "ids[start:end], pad_id", "ids[start : end + 1], pad_id"),
        (
            "TensorRT-LLM: a prefix that the file has not",
            "return found if found or not prefix.startswith(PREFIX) else filtered(",
            "return found if True else filtered(",
        ),
        (
            "TensorRT-LLM: positions from 0",
            "* is_token + padding_idx\n",
            "* is_token + padding_idx\n    numbers = places\n",
        ),
        ("TensorRT-LLM: positions through the batch", "num_before - num_before[starts] + 1", "num_before + 1"),
    ],
    ("server", "tests/server/http/test_auth.py tests/server_e2e/edge/test_security.py"): [
        ("A key opens whatever follows it", "if hmac.compare_digest(given, key.digest):", "if given:")
    ],
    ("server", "tests/server/http/test_hosts.py"): [
        (
            "Web pages of any origin use a server without keys",
            "if (is_host_right and (origin is None or self._takes_from(origin))) or is_health(method, path):",
            "if is_host_right or is_health(method, path):",
        )
    ],
    ("server", "tests/server/http/test_tls.py"): [
        (
            "A certificate without its key takes the old one's place",
            "    except OSError:  # ssl.SSLError is one\n",
            "    except FileNotFoundError:\n",
        )
    ],
    ("server", "tests/server/http/test_auth.py"): [
        (
            "A key that was taken out of the file stays good",
            "self._keys = with_file(file.flag_keys, file.path)",
            "self._keys = [*self._keys, *with_file(file.flag_keys, file.path)]",
        )
    ],
    ("server", "tests/server/requests"): [
        (
            "One request too many is let in",
            "if self._num_in_work <= self._max_in_work:",
            "if self._num_in_work <= self._max_in_work + 1:",
        ),
        ("The characters of a text are never learnt", "weight = counted / (counted + _HISTORY)", "weight = 0.0"),
    ],
    ("server", "tests/server/requests/admission/test_open_requests.py"): [
        (
            "A client that is silent takes a place",
            "with self.waiting(), self._all.waiting(self._key, clock):",
            "with self._all.waiting(self._key, clock):",
        )
    ],
    ("server", "tests/server/http/routes/test_bounds_of_every_route.py"): [
        (
            "A file's content does not count until it is read",
            "self._hold(request, found.body)",
            'self._hold(request, b"")',
        )
    ],
    ("server", "tests/server/requests tests/server/dialects"): [
        (
            "The worst document is ranked first",
            'return np.argsort(-self.scores, kind="stable")',
            'return np.argsort(self.scores, kind="stable")',
        )
    ],
    ("server", "tests/server/dialects"): [
        ("A rerank answer has all documents", "ranked.best_first()[: request.top_n]", "ranked.best_first()"),
        (
            "TEI's single prediction comes in a list",
            "content = items[0] if request.is_single else as_list(items)",
            "content = as_list(items)",
        ),
        (
            "Raw rows are big-endian",
            "if form.endianness is Endianness.BIG else values",
            "if form.endianness is Endianness.LITTLE else values",
        ),
    ],
    ("server", "tests/server/settings"): [
        (
            "A file outranks the command line",
            "            **_of(flags_of(Settings), file.values, given),",
            "            **_of(flags_of(Settings), given, file.values),",
        )
    ],
    ("server", "tests/server/metrics"): [
        ("A counter forgets what it had counted", "sums[labels] = sums.get(labels, 0) + by", "sums[labels] = by"),
        (
            "Buckets of a histogram do not add up",
            "        total += count\n        if edge in wanted:",
            "        total = count\n        if edge in wanted:",
        ),
    ],
    ("server", "tests/server/supervisor"): [
        (
            "A process is started once more than it should be",
            "return self._failures.get(child, 0) >= len(_DELAYS)",
            "return self._failures.get(child, 0) > len(_DELAYS)",
        ),
        (
            "The watchdog forgets how many streams an engine has",
            "_SLOWER_THAN_PREDICTED * num_tokens * streams / slowest",
            "_SLOWER_THAN_PREDICTED * num_tokens / slowest",
        ),
    ],
    ("batch_manager", "tests/batch_manager/sick_engines"): [
        (
            "An engine that fails in a row goes on drawing work",
            "for engine in trusted or engines if engine.has_room",
            "for engine in engines if engine.has_room",
        ),
        (
            "What failed on two engines goes on to a third",
            "if batch.failed_on is not None:\n        return None",
            "if batch.failed_on == engine.engine_id:\n        return None",
        ),
        (
            "What a sick engine held is blamed for its restart",
            "computing = [] if was_restarted else engine.computing",
            "computing = engine.computing",
        ),
        ("Suspects are tried one by one", "math.isqrt(count - 1) + 1", "1"),
        (
            "A group of suspects is refused as one",
            "if batch.is_suspect and batch.num_seqs == 1:",
            "if batch.is_suspect:",
        ),
    ],
    ("engine", "tests/engine/selftest/test_warmup.py"): [
        ("A canary that differs passes", "if not difference <= self._tolerance:", "if difference != difference:")
    ],
    ("batch_manager", "tests/batch_manager/sick_engines/test_quarantine.py"): [
        (
            "An input of one model is refused by another",
            'hashlib.blake2b(submission.model.to_bytes(4, "little"), digest_size=16)',
            "hashlib.blake2b(digest_size=16)",
        )
    ],
    ("embedline", "tests/embedline/client/test_pending_batches.py"): [
        (
            "The client comes back before it is asked to",
            "return failure.retry_after + chance.uniform(0.0, 0.1 + 0.1 * failure.retry_after)",
            "return chance.uniform(0.0, 0.1 + failure.retry_after)",
        )
    ],
    ("embedline", "tests/embedline/client/test_embed.py"): [
        (
            "The client takes rows for other texts than they are for",
            "return self._rows_for(batch.start, batch.stop, width)",
            "return self._rows_for(0, len(batch.items), width)",
        )
    ],
    ("embedline", "tests/embedline/client/test_wrong_servers.py"): [
        (
            "The client believes an answer that has too few rows",
            "if found != len(batch.items):",
            "if found > len(batch.items):",
        )
    ],
    ("embedline", "tests/embedline/client/test_limit.py"): [
        (
            "The budget of hedged requests is not kept",
            "if share <= 0 or self._num_hedges >= max(1.0, share * self._num_requests):",
            "if share <= 0:",
        )
    ],
    ("engine", "tests/engine/model/detection/test_reranker_families.py"): [
        (
            "A reranker that was trained anew takes its base model's template",
            "if told is not None and (_TRAINED not in card.tags or told[1].startswith(_BY_CHAT)):",
            "if told is not None:",
        )
    ],
    ("engine", "tests/engine/selftest/test_comparison.py"): [
        (
            "Rows are compared with the numbers that all of them share",
            "expected - expected.mean(axis=0, dtype=np.float64) if is_centred else expected.astype",
            "expected.astype",
        )
    ],
    ("engine", "tests/engine/transformers/test_selftest.py"): [
        (
            "The self-test has no text beyond the window",
            "lengths = (*_SEQLENS, *tried, *seqlens)",
            "lengths = (*_SEQLENS, *seqlens)",
        )
    ],
    ("engine/transformers", "tests/engine/transformers/test_headers.py"): [
        (
            "Weights are compared with config.json only when all were read",
            "            check_headers(folder, model_class, config)\n",
            "",
        )
    ],
}
MISTAKES = tuple(
    Mistake(name, package, right, wrong, near)
    for (package, near), planted in _PLACES.items()
    for name, right, wrong in planted
)
