"""Made-up medical names: pronounceable, of the shapes of real ones, and never equal to a name of the knowledge base.

The warm start teaches copying and comparing on these alone, so that nothing it learns is a medical fact.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Collection, Sequence

_ONSETS = (
    "b c d f g h j k l m n p r s t v w x y z br ch cl cr dr fl fr gl gr ph pl pr qu rh sc sh sl sp st str th tr".split()
)
_VOWELS = "a e i o u y a e i o ae ia io oe ea ou".split()
_CODAS = "n m l r s t x c d k p ct ns rm nd st lt sch ck b g".split() + [""] * 12
_STEMS = """
acetyl adeno alb amyl angi arthr astr bact bil brom bronch calc carb cardi cef cell cephal chlor cholin chol chrom
clin clon cortic cycl cyst cyt derm dextr dox dys enter epi erythr ethyl fibr fluor gastr gluc glyc gonad gran haem
hem hepat hist hydr hyper hypo immun insul keto lact leuk lip lymph macr mega melan men met micr mon mut myc myel
myo naphth nas nephr neur nitr ocul oste ot ox pan par path pen phag pharm phen phos plas pneum poly prot pseud
psych pulm pyr ren retin rhin sal sarc scler sider spir splen strept sulf syn tetr thromb thyr tox trache tri trop
tub uric vas ven vesic vir xanth
""".split()
_DRUG_ENDS = """
ine in ol one ide ate mab nib pril sartan statin zole zolam cillin mycin cycline vir oxacin azole idone amide amine
etine parin platin tidine terol thiazide semide olol tinib ciclib gliptin phylline toin barb caine dronate fibrate
setron triptan trexate prazole dipine profen coxib cef dazole bendazole quine mectin ximab lukast sone solone lamide
zepam
""".split()
_DISEASE_ENDS = """
itis osis emia oma pathy plegia algia iasis uria penia trophy megaly ectasia rrhea dystrophy plasia edema lepsy
phagia sclerosis stenosis ism cytosis aemia
""".split()
_TAXON_ENDS = (
    "ella ia us um a is ensis i ae oides bacter coccus bacillus plasma nema soma cystis myces virus spora ium".split()
)
_DISEASE_NOUNS = """
disease syndrome fever anemia disorder deficiency infection dystrophy palsy neuropathy carcinoma leukemia lymphoma
colitis arthritis dermatitis meningitis pneumonia hepatitis encephalitis cirrhosis nephritis cardiomyopathy ataxia
thyroiditis vasculitis myopathy porphyria sclerosis ulcer abscess cyst tumor crisis shock block
""".split()
_ADJECTIVES = """
acute chronic primary secondary familial congenital juvenile pulmonary renal hepatic cardiac gastric cerebral spinal
vascular cutaneous ocular nasal thyroid adrenal pituitary biliary pancreatic intestinal urinary painful painless
itchy swollen red blue white yellow pale dark scaly dry moist firm soft hard tender rapid slow high low sudden
episodic bilateral unilateral diffuse focal peripheral central upper lower deep superficial raised flat round linear
small large severe mild recurrent progressive transient fixed loud early late autoimmune toxic viral bacterial
fungal allergic
""".split()
_NOUNS = """
rash swelling pain tremor weakness lesion nodule plaque ulcer vesicle patch spot ring line murmur sound sign gait
pulse pupil reflex jaw tongue skin nail hair face neck hand foot knee hip joint muscle bone nerve vein artery valve
heart lung liver kidney spleen bladder bowel stomach eye ear nose throat tooth gland node blood urine stool sputum
sweat tear saliva cough fever vomiting headache seizure stiffness wasting paralysis numbness bleeding bruise stone
crystal body cell enzyme receptor antibody antigen channel protein gene hormone vitamin acid salt iron copper
calcium glucose insulin collagen pressure flow wall edge surface
""".split()
_TESTS = """
test assay culture stain biopsy smear level count titer scan scope angiography spectroscopy electrophoresis PCR
serology microscopy measurement sequencing radiograph ultrasound endoscopy manometry spirometry
""".split()
_LINKS = "of in on with after during under over by from against to without between at and for the".split()


class NameMaker:
    """Draws names of each kind from one seeded generator.

    `forbidden` names (compared in lower case) are never drawn. `pieces` are a tokenizer's pieces, those that begin a
    word and those that go on. Words put together from them at random use every token. Otherwise rare tokens, and so
    real names, are not copied well.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        forbidden: Collection[str] = (),
        pieces: tuple[Sequence[str], Sequence[str]] = ((), ()),
    ) -> None:
        self._rng = rng
        self._starts, self._follows = pieces
        self._forbidden = {name.lower() for name in forbidden}
        self._makers: dict[str, Callable[[], str]] = {
            "condition": self._condition,
            "word": self._word,
            "drug": self._drug,
            "cause": self._cause,
            "test": self._test,
            "sign": self._phrase,
            "mechanism": self._mechanism,
        }

    def draw(self, kind: str) -> str:
        """One name of the kind: "condition", "drug", "cause", "test", "sign", "mechanism", or a plain "word"."""
        while True:
            name = self._makers[kind]()
            if self._starts and self._rng.random() < 0.25:  # not in easy names
                name = self._echo(name)
            if name.lower() not in self._forbidden:
                return name

    def _echo(self, name: str) -> str:
        """`name` with one of its words' beginnings, or a hyphen, once more: "thrombotic thrombocytopenic purpura".

        Copying it takes more than "what followed this piece before".
        """
        words = name.split()
        place, source = self._rng.randrange(len(words)), self._rng.choice(words)
        if self._rng.random() < 0.3:
            words[place] += "-" + self._pick(self._syllables(1), self._rng.choice(_NOUNS))
        else:
            stem = source[: max(2, len(source) - self._rng.randint(1, 6))]
            words.insert(place, stem + self._rng.choice(_DISEASE_ENDS + _TAXON_ENDS + _DRUG_ENDS))
        return " ".join(words)

    def akin(self, name: str, to: str) -> str:
        """`name` with a word of `to`, or with a word of the same stem.

        An example is "Legionella pneumophila" for "Legionnaires disease". The two must be told apart by more than their
        first letters.
        """
        words = name.split()
        word = self._rng.choice(to.split())
        if self._rng.random() < 0.6:
            stem = word[: max(3, len(word) - self._rng.randint(1, 4))]
            word = stem + self._rng.choice(_DISEASE_ENDS + _TAXON_ENDS + _DRUG_ENDS)
        place = self._rng.randrange(len(words) + 1)
        words[place : place + self._rng.randint(0, 1)] = [word]
        changed = " ".join(words)
        return name if changed.lower() in self._forbidden or changed == to else changed

    def _pick(self, *choices: str) -> str:
        return self._rng.choice(choices)

    def _syllables(self, count: int) -> str:
        one = self._rng.choice
        return "".join(one(_ONSETS) + one(_VOWELS) + one(_CODAS) for _ in range(count))

    def _root(self) -> str:
        """A word stem: morphemes, syllables, or both, at times with stray letters."""
        kind = self._rng.random()
        if kind < 0.05:
            return self._odd().lower() + self._syllables(1)
        if kind < 0.45 and self._starts:
            return self._pieced()
        shape = self._rng.random()
        if shape < 0.35:
            return self._syllables(self._rng.randint(1, 3))
        if shape < 0.6:
            return self._rng.choice(_STEMS) + self._pick("o", "i", "a", "") + self._syllables(1)
        if shape < 0.8:
            return self._rng.choice(_STEMS) + self._pick("o", "i", "") + self._rng.choice(_STEMS)
        return self._syllables(1) + self._rng.choice(_STEMS)

    def _odd(self) -> str:
        """Letters without a pattern, as in gene symbols, acronyms and foreign words; they use every short token."""
        letters = "".join(self._rng.choices(string.ascii_lowercase, k=self._rng.randint(2, 7)))
        shape = self._rng.random()
        if shape < 0.4:
            return letters
        if shape < 0.55:
            return letters.capitalize()
        symbol = letters[: self._rng.randint(1, 4)].upper()
        tail = self._pick("", str(self._rng.randint(0, 99)), f"-{self._rng.randint(0, 9)}", letters[-1].upper())
        return self._pick("", "", "17-", "t", "anti-") + symbol + tail

    def _pieced(self) -> str:
        """A word of one to four random pieces."""
        follows = self._rng.choices(self._follows, k=self._rng.choice((0, 1, 1, 2, 2, 3)))
        return self._rng.choice(self._starts) + "".join(follows)

    def _word(self) -> str:
        """Any word, at times with a hyphen or a digit."""
        kind = self._rng.random()
        if kind < 0.1:
            return self._odd()
        if kind < 0.5 and self._starts:
            return self._pieced()
        shape = self._rng.random()
        if shape < 0.5:
            return self._rng.choice(_NOUNS)
        if shape < 0.75:
            return self._rng.choice(_ADJECTIVES)
        if shape < 0.9:
            return self._root() + self._rng.choice(_DISEASE_ENDS + _DRUG_ENDS)
        if shape < 0.95:
            return f"{self._root()}-{self._rng.choice(_NOUNS)}"
        return f"{self._root()}-{self._rng.randint(1, 99)}"

    def _eponym(self) -> str:
        name = self._syllables(self._rng.randint(1, 3)).capitalize()
        return name + self._pick("", "", "son", "er", "man", "berg", "ing", "ton", "ski", "ler", "ner")

    def _condition(self) -> str:
        shape = self._rng.random()
        if shape < 0.3:
            name = self._root() + self._rng.choice(_DISEASE_ENDS)
        elif shape < 0.5:
            name = f"{self._eponym()} {self._rng.choice(_DISEASE_NOUNS)}"
        elif shape < 0.55:
            name = f"{self._eponym()}-{self._eponym()} {self._rng.choice(_DISEASE_NOUNS)}"
        elif shape < 0.7:
            name = f"{self._root()} {self._rng.choice(_DISEASE_NOUNS)}"
        elif shape < 0.85:
            name = f"{self._rng.choice(_ADJECTIVES)} {self._root()}{self._rng.choice(_DISEASE_ENDS)}"
        else:
            name = f"{self._word()} {self._word()} {self._rng.choice(_DISEASE_NOUNS)}"
        return name

    def _drug(self) -> str:
        word = self._root() + self._rng.choice(_DRUG_ENDS)
        shape = self._rng.random()
        if shape < 0.7:
            return word
        if shape < 0.8:
            return f"{word}-{self._root()}{self._rng.choice(_DRUG_ENDS)}"
        if shape < 0.9:
            return f"{word} {self._pick('acid', 'sulfate', 'G', 'B', 'oil', 'citrate', 'sodium')}"
        return f"{self._rng.choice(_ADJECTIVES)} {word}"

    def _cause(self) -> str:
        genus = (self._root() + self._rng.choice(_TAXON_ENDS)).capitalize()
        shape = self._rng.random()
        if shape < 0.5:
            return f"{genus} {self._root()}{self._rng.choice(_TAXON_ENDS)}"
        if shape < 0.65:
            return f"{self._root()} virus"
        if shape < 0.8:
            return f"{self._rng.choice(_ADJECTIVES)} {self._root()}{self._rng.choice(_DISEASE_ENDS)}"
        return self._phrase()

    def _test(self) -> str:
        words = " ".join(self._word() for _ in range(self._rng.choice((1, 1, 2, 2, 3))))
        if self._rng.random() < 0.6:
            return f"{words} {self._rng.choice(_TESTS)}"
        return f"{self._rng.choice(_TESTS)} {self._rng.choice(_LINKS)} {words}"

    def _phrase(self) -> str:
        words = [self._word() for _ in range(self._rng.choice((2, 3, 3, 4, 4, 5, 6)))]
        if len(words) > 2:
            words[-2] = self._rng.choice(_LINKS)
        return " ".join(words)

    def _mechanism(self) -> str:
        shape = self._rng.random()
        if shape < 0.3:
            return (
                f"{self._pick('loss', 'lack', 'excess', 'deficiency', 'blockade', 'mutation')} of {self._word()} "
                f"{self._word()}"
            )
        if shape < 0.5:
            return f"antibodies against {self._word()} {self._rng.choice(_NOUNS)}"
        return self._phrase()
